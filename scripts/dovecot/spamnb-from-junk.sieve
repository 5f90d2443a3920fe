# A message was moved out of Junk: ham, unless the target is Trash or a folder below Junk.
# If your Trash has another name, add it here.
# The script checks the source folder, because imapsieve_from of Dovecot 2.4 has no wildcards for the folders below
# Junk (2.4.1).
require ["vnd.dovecot.pipe", "copy", "imapsieve", "vnd.dovecot.imapsieve", "environment", "variables"];
if not environment :matches "vnd.dovecot.mailbox-from" ["Junk", "Junk/*", "Junk.*"] { stop; }
if environment :matches "imap.user" "*" { set "user" "${1}"; }
if environment :matches "imap.mailbox" "*" { set "to" "${1}"; }
if string :matches "${to}" ["Junk", "Junk/*", "Junk.*", "Trash", "Trash/*", "Trash.*",
                            "Deleted Messages", "Deleted Items", "Papierkorb", "Corbeille"] {
  stop;
}
pipe :copy :try "spamnb-teach" ["ham", "${user}"];
