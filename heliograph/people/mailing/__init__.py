"""Mails about people's accounts: `texts` is what they say, `forgotten` how somebody who lost their password is mailed
a link, `trial` the mail by which an operator sees whether mails arrive."""
