# A message came into Junk, by whatever way a mail program has: it is spam.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables"];
if environment :matches "imap.user" "*" { set "user" "${1}"; }
pipe :copy :try "spamnb-teach" ["spam", "${user}"];
