#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whose requests they are: each place where credentials may be, that they are renewed in time, and that nobody sees them."""
import os
import time

from cli import ENV, OK, SCRATCH, check, equal, fails, finish, run
from served import KEYS, SERVER, gs, s3, skip_without_libcurl

SOURCE = "dcp-fsdp2/ckpt"
NONE = dict(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, GS_ACCESS_KEY_ID=None, GS_SECRET_ACCESS_KEY=None)
STS = dict(NONE, AWS_ENDPOINT_URL_STS=f"{SERVER.url}/sts")
# Not AWS_ENDPOINT_URL: with it, the machine is none of Amazon's.
MACHINE = dict(NONE, AWS_ENDPOINT_URL=None, AWS_ENDPOINT_URL_S3=SERVER.url, AWS_EC2_METADATA_SERVICE_ENDPOINT=SERVER.url)
CONTAINER = dict(NONE, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{SERVER.url}/container/credentials")
SECRETS = [KEYS[1], "web-identity-token", "machine-session", "container-token", "issued-secret", "issued/token", "issued%2Ftoken"]
SAID = []


def shown(source, **env):
    """The newest version is listed, and by credentials of which kind."""
    got = run("ls", source, "latest", "--json", **env)
    SAID.extend((got.stdout, got.stderr))
    check(got.returncode == OK, f"{env}: {got.returncode} {got.stderr}")
    about = run("doctor", source, **env).stdout
    SAID.append(about)
    text = " ".join(about.decode().split())
    return text.partition("credentials: ")[2].partition(" all that")[0].partition(";")[0].strip()


def asked(path):
    return [r for r in SERVER.taken() if r[1].startswith(path)]


def profiles(credentials="", config=""):
    (SCRATCH / ".aws").mkdir(exist_ok=True)
    (SCRATCH / ".aws/credentials").write_text(credentials)
    (SCRATCH / ".aws/config").write_text(config)


def google_credentials_are_taken():
    """HMAC keys; a token; the machine's token; and a file that is not read is refused by its name."""
    check(shown(gs(SOURCE)).startswith("environment"), "HMAC keys")
    fails(ENV, "SignatureDoesNotMatch", "ls", gs(SOURCE), GS_SECRET_ACCESS_KEY="wrong")
    fails(ENV, "HTTP 403", "ls", gs(SOURCE), **NONE)
    token = SERVER.issue()[2]
    check(shown(gs(SOURCE), **NONE, GOOGLE_OAUTH_ACCESS_TOKEN=token).startswith("a token"), "a token")
    fails(ENV, "AccessDenied", "ls", gs(SOURCE), **NONE, GOOGLE_OAUTH_ACCESS_TOKEN="another")
    check(shown(gs(SOURCE), **NONE, GCE_METADATA_HOST=SERVER.url.removeprefix("http://")).startswith("machine"), "a machine's token")
    fails(ENV, "GOOGLE_APPLICATION_CREDENTIALS=/key.json is not read", "ls", gs(SOURCE), **NONE, GOOGLE_APPLICATION_CREDENTIALS="/key.json")


def web_identities_are_taken():
    (SCRATCH / "token").write_text("web-identity-token\n")
    env = dict(STS, AWS_WEB_IDENTITY_TOKEN_FILE=str(SCRATCH / "token"), AWS_ROLE_ARN="arn:aws:iam::1:role/a b", AWS_ROLE_SESSION_NAME="me")
    check(shown(s3(SOURCE), **env).startswith("web identity"), "kind")
    equal({k: SERVER.role_asked.get(k) for k in ("RoleArn", "RoleSessionName")}, {"RoleArn": "arn:aws:iam::1:role/a b", "RoleSessionName": "me"}, "asked")
    fails(ENV, "No such file", "ls", s3(SOURCE), **{**env, "AWS_WEB_IDENTITY_TOKEN_FILE": "/no/such"})
    (SCRATCH / "token").write_text("of-another")
    got = fails(ENV, "AccessDenied: not for you", "ls", s3(SOURCE), **env)
    check(b"of-another" not in got.stderr, "the token is in no message")
    (SCRATCH / "token").write_text("web-identity-token\n")
    profiles(config=f"[profile cluster]\nrole_arn = arn:x\nweb_identity_token_file = {SCRATCH}/token\n")
    check(shown(s3(SOURCE), **STS, AWS_PROFILE="cluster").startswith("web identity"), "by a profile")


def profiles_are_taken():
    keys = f"aws_access_key_id={KEYS[0]}\naws_secret_access_key = {KEYS[1]}\n"
    profiles(f"[default]\naws_access_key_id = x\n[other]\n{keys}",
             "[profile by-other]\nrole_arn = arn:by-other\nsource_profile = other\nexternal_id = a&b\nrole_session_name = session\n"
             f"[profile by-itself]\nrole_arn = arn:by-itself\nsource_profile = by-itself\n{keys}"
             "[profile two]\nrole_arn=arn:two\nsource_profile=by-other\n"
             "[profile by-environment]\nrole_arn=arn:e\ncredential_source=Environment\n"
             "[profile by-machine]\nrole_arn=arn:m\ncredential_source=Ec2InstanceMetadata\n"
             "[profile by-container]\nrole_arn=arn:c\ncredential_source=EcsContainer\n"
             "[profile loop]\nrole_arn=arn:l\nsource_profile=loop2\n[profile loop2]\nrole_arn=arn:l\nsource_profile=loop\n"
             "[profile bare]\nrole_arn=arn:b\n[profile lost]\nrole_arn=arn:b\nsource_profile=nobody\n"
             "[profile mfa]\nrole_arn=arn:b\nsource_profile=other\nmfa_serial=arn:mfa\n"
             "[profile process]\ncredential_process = /bin/touch %s\n[profile sso]\nsso_session = work\n[profile old-sso]\nsso_start_url = https://x\n"
             "[profile region]\nregion = eu-west-1\n" % (SCRATCH / "run"))
    check(shown(s3(SOURCE), **NONE, AWS_PROFILE="other").startswith("profile"), "keys")
    for name, want in ("by-other", {"RoleArn": "arn:by-other", "ExternalId": "a&b", "RoleSessionName": "session"}), ("by-itself", {"RoleArn": "arn:by-itself"}), (
            "two", {"RoleArn": "arn:two", "RoleSessionName": "dcpfs"}):
        check(shown(s3(SOURCE), **STS, AWS_PROFILE=name).startswith("role"), f"{name}: kind")
        equal({k: SERVER.role_asked.get(k) for k in want}, want, f"{name}: asked")
    check(shown(s3(SOURCE), **{**STS, **MACHINE}, AWS_PROFILE="by-machine").startswith("role"), "by the machine's")
    check(shown(s3(SOURCE), **{**STS, **CONTAINER}, AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", AWS_PROFILE="by-container").startswith("role"), "by the container's")
    for name, says in (("loop", "leads to itself"), ("bare", "no credentials to take the role by"), ("lost", "no credentials to take the role by"),
                       ("mfa", "mfa has mfa_serial"), ("process", "process has credential_process"), ("sso", "sso has sso_session"),
                       ("old-sso", "old-sso has sso_start_url"), ("none", "AWS_PROFILE=none: there is no such profile")):
        fails(ENV, says, "ls", s3(SOURCE), **STS, AWS_PROFILE=name)
    check(not (SCRATCH / "run").exists(), "no program of a profile is run")
    # A profile that has no keys leaves them to what follows.
    check(shown(s3(SOURCE), **MACHINE, AWS_PROFILE="region").startswith("machine"), "a profile without keys")
    profiles()


def container_credentials_are_taken():
    check(shown(s3(SOURCE), **CONTAINER, AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token").startswith("container"), "by a token")
    (SCRATCH / "container").write_text("container-token\n")
    check(shown(s3(SOURCE), **CONTAINER, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(SCRATCH / "container")).startswith("container"), "by a file")
    fails(ENV, "HTTP 403", "ls", s3(SOURCE), **CONTAINER, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong")
    fails(ENV, "by http:// all but this machine's", "ls", s3(SOURCE), **{**CONTAINER, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/x"})


def machine_credentials_are_taken():
    SERVER.taken()
    check(shown(s3(SOURCE), **MACHINE).startswith("machine"), "IMDSv2")
    paths = [r[:2] for r in SERVER.taken() if r[1].startswith("/latest")]
    equal(paths[:3], [("PUT", "/latest/api/token"), ("GET", "/latest/meta-data/iam/security-credentials/"),
                      ("GET", "/latest/meta-data/iam/security-credentials/a-role")], "a session first")
    fails(ENV, "HTTP 403", "ls", s3(SOURCE), **MACHINE, AWS_EC2_METADATA_DISABLED="true")
    equal(asked("/latest"), [], "a machine that is not asked")


def credentials_are_renewed_in_time():
    """Five minutes before the end there are new ones; those that still are good do while new ones cannot be had; a server
    that calls them expired is believed."""
    env = dict(CONTAINER, AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token")
    top = SCRATCH / "mnt"
    top.mkdir()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return
    run("ls", s3(SOURCE), "latest")
    SERVER.lasts = 302  # two seconds, and five minutes
    got = run("mount", s3(SOURCE), top, "--no-cache", **env)
    check(got.returncode == OK, f"mount: {got.stderr}")
    try:
        files = [top / f"latest/raw/dataloader.rank{i}.order.bin" for i in range(4)]  # each in a file of its own
        first = len(SERVER.issued)
        time.sleep(5.5)  # they are asked for anew after five seconds at most
        SERVER.fault = lambda r: 500 if r.name == "/container/credentials" else None
        files[0].read_bytes()
        equal(len(SERVER.issued), first, "while none can be had")
        SERVER.fault, SERVER.lasts = lambda r: None, 3600
        time.sleep(5.5)
        files[1].read_bytes()
        equal(len(SERVER.issued), first + 1, "renewed before they end")
        SERVER.expired.update(SERVER.issued)
        files[2].read_bytes()
        files[3].read_bytes()
        equal(len(SERVER.issued), first + 2, "renewed once when they had ended")
    finally:
        SERVER.fault, SERVER.lasts = lambda r: None, 3600
        run("umount", top)


skip_without_libcurl()
for test in (google_credentials_are_taken, web_identities_are_taken, profiles_are_taken, container_credentials_are_taken,
             machine_credentials_are_taken, credentials_are_renewed_in_time):
    began = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - began:.1f} s", flush=True)
kept = b"".join(p.read_bytes() for p in (SCRATCH / "cache").rglob("*") if p.is_file())
for secret in SECRETS:
    check(secret.encode() not in kept and not any(secret.encode() in said for said in SAID), f"{secret} is in no message, nor in the cache")
finish()
