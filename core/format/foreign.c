/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families that dcpfs does not read: rows without load(), for messages that say what was found and
 * what to do. Where two fit, the first is the better guess.
 */
#include "core/format/format.h"

#define ZARR "open it with zarr or tensorstore and save safetensors"
#define JAX "save it in JAX as safetensors (safetensors.flax.save_file), or as torch DCP"

const struct dcp_mark dcp_foreign[] = {
	{ "*.tensors", "a model of tensorizer (CoreWeave)",
	  "load it with tensorizer.TensorDeserializer and save a state_dict of it as "
	  "safetensors" },
	{ "_CHECKPOINT_METADATA", "an Orbax checkpoint", JAX },
	{ "ocdbt.process_*", "an Orbax checkpoint (OCDBT)", JAX },
	{ "_METADATA", "an Orbax checkpoint", JAX },
	{ "manifest.ocdbt", "a TensorStore OCDBT database (Orbax)", JAX },
	{ "*.orbax-checkpoint-tmp*", "an Orbax checkpoint that was not finished", JAX },
	{ ".snapshot_metadata", "a torchsnapshot checkpoint",
	  "restore it with torchsnapshot and save it as torch DCP" },
	{ "@(zarr.json|.zgroup)", "a Zarr store", ZARR },
	{ ".zarray", "one array of a Zarr store (TensorStore)", ZARR },
	{ "@(.zmetadata|*.zarr)", "a Zarr store", ZARR },
	{ "*.gguf", "a GGUF model of llama.cpp", "take the safetensors it was converted from" },
	{ "*.ggml", "a GGML model of llama.cpp", "take the safetensors it was converted from" },
	{ "saved_model.pb", "a TensorFlow SavedModel",
	  "load it in TensorFlow and save its variables as safetensors" },
	{ "@(*.data-00000-of-*|*.ckpt.index|*.ckpt-[0-9]*.index)", "a TensorFlow checkpoint",
	  "load it in TensorFlow and save its variables as safetensors" },
	{ "*.keras", "a Keras model", "load it in Keras and save its weights as safetensors" },
	{ "@(*.h5|*.hdf5)", "a HDF5 file (Keras)",
	  "load it in Keras or h5py and save safetensors" },
	{ "*.onnx", "an ONNX model: a program, not a checkpoint",
	  "take the weights it was made of" },
	{ "*.onnx_data", "data of an ONNX model", "take the weights it was made of" },
	{ "*.pte", "an ExecuTorch program", "take the state_dict it was exported from" },
	{ "*.ptl", "a TorchScript program (PyTorch Mobile)",
	  "load it with torch.jit.load and save its state_dict with torch.save" },
	{ "*.pt2", "an exported program (torch.export)",
	  "load it with torch.export.load and save its state_dict with torch.save" },
	{ "*.tflite", "a TensorFlow Lite program", "take the weights it was made of" },
	{ "@(*.mlmodel|*.mlpackage)", "a Core ML program", "take the weights it was made of" },
	{ "@(*.engine|*.plan)", "a TensorRT engine", "take the weights it was built from" },
	{ "*.msgpack", "a Flax checkpoint (msgpack)", JAX },
	{ "*.caffemodel", "a Caffe model", "convert it to PyTorch and save that" },
	{ "*.params", "an MXNet checkpoint", "load it in MXNet and save numpy arrays" },
	{ "*.mar", "a TorchServe archive", "unpack it: it is a zip file" },
	{ "*.llamafile", "a llamafile program", "take the safetensors it was converted from" },
	{ 0 },
};
