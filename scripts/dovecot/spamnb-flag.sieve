# A mail program set a flag instead of moving the message. $Junk and $NotJunk are the registered names,
# Junk and NonJunk what Thunderbird used before.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables", "imap4flags"];
if environment :matches "imap.user" "*" { set "user" "${1}"; }
if environment :contains "imap.changedflags" ["$Junk", "Junk", "$NotJunk", "NonJunk"] {
  if hasflag :is ["$NotJunk", "NonJunk"] {
    pipe :copy :try "spamnb-teach" ["ham", "${user}"];
  } elsif hasflag :is ["$Junk", "Junk"] {
    pipe :copy :try "spamnb-teach" ["spam", "${user}"];
  }
}
