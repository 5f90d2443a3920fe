"""Which Dovecot the tests use: the machine's own, or one in a folder with a whole system.

SPAMNB_DOVECOT_ROOT names such a folder. So the Dovecot of Debian 13 can run on Debian 12:

    debootstrap --variant=minbase trixie FOLDER
    chroot FOLDER apt-get install --no-install-recommends dovecot-imapd dovecot-lmtpd dovecot-sieve

This module and the documentation have the differences between the versions.
"""

import functools
import os
import shutil
import subprocess
import tempfile

ROOT = os.environ.get("SPAMNB_DOVECOT_ROOT", "").rstrip("/")
"""empty: the machine itself"""

# No other process sees the mounts, and they end with the last process that sees them.
_INSIDE = """
root=$1 shared=$2; shift 2
mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" || exit
mkdir -p "$root$shared" && mount --bind "$shared" "$root$shared" || exit
exec chroot "$root" "$@"
"""

_SETTINGS = {}
"""by version: what the rig needs in addition to the recipes"""

_SETTINGS["2.3"] = """
base_dir = {root}/dovecot/run
state_dir = {root}/dovecot/run
log_path = {root}/dovecot.log
listen = 127.0.0.1
protocols = imap lmtp
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain login
auth_username_format = %n
mail_location = maildir:{root}/mail/%n/Maildir
mail_home = {root}/mail/%n
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = 1
first_valid_gid = 1
postmaster_address = postmaster@example.org
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%n {root}/dovecot/users
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={root}/mail/%n
}}
"""

_SETTINGS["2.4"] = """
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
base_dir = {root}/dovecot/run
state_dir = {root}/dovecot/run
log_path = {root}/dovecot.log
listen = 127.0.0.1
protocols = imap lmtp
ssl = no
auth_allow_cleartext = yes
auth_mechanisms = plain login
auth_username_format = %{{user | username}}
mail_driver = maildir
mail_home = {root}/mail/%{{user | username}}
mail_path = ~/Maildir
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = 1
first_valid_gid = 1
postmaster_address = postmaster@example.org
passdb passwd-file {{
  passwd_file_path = {root}/dovecot/users
}}
userdb static {{
}}
"""

_OF_BOTH = """
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    port = {lmtp}
  }}
}}
service auth {{
  unix_listener {root}/dovecot/auth {{
    mode = 0666
  }}
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Junk {{
    auto = subscribe
    special_use = \\Junk
  }}
  mailbox Trash {{
    auto = subscribe
    special_use = \\Trash
  }}
}}
"""

_TLS = {
    "2.3": "ssl = yes\nssl_cert = <{cert}\nssl_key = <{key}",
    "2.4": "ssl = yes\nssl_server_cert_file = {cert}\nssl_server_key_file = {key}",
}


def missing():
    """Programs that are not installed."""
    path = f"{ROOT}/usr/sbin:{ROOT}/usr/bin"
    return [name for name in ("dovecot", "sievec") if shutil.which(name, path=path) is None]


def command(*arguments):
    """Arguments that run one of Dovecot's programs, wherever Dovecot is."""
    if not ROOT:
        return arguments
    return (
        "unshare",
        "--mount",
        "sh",
        "-c",
        _INSIDE,
        "sh",
        ROOT,
        tempfile.gettempdir(),
        *arguments,
    )


@functools.cache
def version():
    """The version that its settings are written for, such as 2.3."""
    output = subprocess.check_output(command("dovecot", "--version"), text=True)
    return ".".join(output.split(".")[:2])


def settings(**values):
    """Write the settings of the Dovecot there is."""
    return (_SETTINGS[version()] + _OF_BOTH).format(**values)


def tls(cert, key):
    """Write the settings that replace `ssl = no` if STARTTLS is offered."""
    return _TLS[version()].format(cert=cert, key=key)
