# A message was moved, copied or appended to Junk: spam.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables"];
if environment :matches "imap.user" "*" { set "user" "${1}"; }
pipe :copy :try "spamnb-teach" ["spam", "${user}"];
