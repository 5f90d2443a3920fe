# A message left Junk: it is ham, unless it was thrown away or only moved about inside.
# If your Trash has another name, add it here.
# From where is asked here, for the settings of Dovecot 2.4 cannot say it of the folders below Junk: its
# imapsieve_from takes a name as it is, without wildcards (2.4.1).
require ["vnd.dovecot.pipe", "copy", "imapsieve", "vnd.dovecot.imapsieve", "environment", "variables"];
if not environment :matches "vnd.dovecot.mailbox-from" ["Junk", "Junk/*", "Junk.*"] { stop; }
if environment :matches "imap.user" "*" { set "user" "${1}"; }
if environment :matches "imap.mailbox" "*" { set "to" "${1}"; }
if string :matches "${to}" ["Junk", "Junk/*", "Junk.*", "Trash", "Trash/*", "Trash.*",
                            "Deleted Messages", "Deleted Items", "Papierkorb", "Corbeille"] {
  stop;
}
pipe :copy :try "spamnb-teach" ["ham", "${user}"];
