# A message left Junk: it is ham, unless it was thrown away or only moved about inside.
# If your Trash has another name, add it here.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables"];
if environment :matches "imap.user" "*" { set "user" "${1}"; }
if environment :matches "imap.mailbox" "*" { set "to" "${1}"; }
if string :matches "${to}" ["Junk", "Junk/*", "Junk.*", "Trash", "Trash/*", "Trash.*",
                            "Deleted Messages", "Deleted Items", "Papierkorb", "Corbeille"] {
  stop;
}
pipe :copy :try "spamnb-teach" ["ham", "${user}"];
