"""Mails about people's accounts: `texts` holds their wording, `forgotten` mails a link to somebody who lost their
password, `trial` sends the test mail by which an operator checks that mails arrive."""
