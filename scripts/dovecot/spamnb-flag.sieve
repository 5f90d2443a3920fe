# A flag was set instead of a move. $Junk and $NotJunk are the registered names; Thunderbird used Junk and NonJunk
# before.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables", "imap4flags"];
if environment :matches "imap.user" "*" { set "user" "${1}"; }
if environment :contains "imap.changedflags" ["$Junk", "Junk", "$NotJunk", "NonJunk"] {
  if hasflag :is ["$NotJunk", "NonJunk"] {
    pipe :copy :try "spamnb-teach" ["ham", "${user}"];
  } elsif hasflag :is ["$Junk", "Junk"] {
    pipe :copy :try "spamnb-teach" ["spam", "${user}"];
  }
}
