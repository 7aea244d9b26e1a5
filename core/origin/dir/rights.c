/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/dir/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/origin/origin.h"

enum { LIST_MAX = 16 << 10 }; /* bytes of an access control list; 2,000 entries */

struct dcp_rights dcp_rights_alone(void)
{
	return (struct dcp_rights){ geteuid(), getegid(), 0400 };
}

/* Servers of these file systems decide by the mode and list that we read. Other remote file systems
 * may decide by anything else. */
static bool is_known_remote(uint32_t type)
{
	static const uint32_t kinds[] = { NFS_SUPER_MAGIC, 0x00c36400 /* Ceph */,
					  AUTOFS_SUPER_MAGIC, 0x0bd00bd0 /* Lustre */ };

	for (size_t i = 0; i < DCP_LEN(kinds); i++)
		if (type == kinds[i])
			return true;
	return false;
}

/* Do mode and list say who may read there? */
static bool modes_are_reliable(const char *path)
{
	dcp_auto_fd int fd = open(path, O_PATH | O_CLOEXEC);
	struct statfs fs;

	return fd >= 0 && (dcp_is_local(fd) ||
			   (fstatfs(fd, &fs) == 0 && is_known_remote((uint32_t)fs.f_type)));
}

/* Is there no access control list but POSIX's, or does the NFSv4 list say the same as the mode? */
static bool nfs4_acl_equals_mode(const char *path, void *list)
{
	ssize_t n = getxattr(path, "system.nfs4_acl", list, LIST_MAX);

	return n < 0 ? errno == ENODATA || errno == ENOTSUP
		     : dcp_rights_nfs4_is_mode(list, (size_t)n);
}

int dcp_rights_shown(const char *path, struct dcp_rights *out)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	*out = (struct dcp_rights){ st.st_uid, st.st_gid, st.st_mode & 0444 };
	return 0;
}

struct dcp_rights dcp_rights_of_path(const char *path, uint32_t need, uint64_t *dev)
{
	char list[LIST_MAX];
	struct dcp_rights r;
	struct stat st;
	ssize_t n;

	if (stat(path, &st) < 0)
		return dcp_rights_alone();
	if (dev && *dev != st.st_dev && !modes_are_reliable(path))
		return dcp_rights_alone();
	if (dev)
		*dev = st.st_dev;
	n = getxattr(path, "system.posix_acl_access", list, sizeof(list));
	if (n < 0 && errno != ENODATA &&
	    (errno != ENOTSUP || !nfs4_acl_equals_mode(path, list)))
		return dcp_rights_alone();
	r = dcp_rights_of_mode(st.st_uid, st.st_gid, st.st_mode, need);
	if (n > 0 && dcp_rights_of_acl(st.st_uid, st.st_gid, list, (size_t)n, need, &r) < 0)
		return dcp_rights_alone();
	return r;
}
