"""The wording of mails, in each language of the dashboard. They are plain text, so every link shows its address."""

from __future__ import annotations

from heliograph.base.network.smtp import Mail

INVITATION = {
    "en": (
        "Invitation to {organization}",
        """Hello,

{inviter} has invited you to join {organization} on Heliograph. To accept, use this link, which is valid for three \
days and can be used once:

{link}
{note}
If you did not expect this, there is nothing you need to do.
""",
    ),
    "pt": (
        "Convite para {organization}",
        """Olá,

{inviter} convida-o(a) para {organization} no Heliograph. \
Aceite com esta ligação, válida durante três dias e para uma só utilização:

{link}
{note}
Se não esperava este convite, não precisa de fazer nada.
""",
    ),
}
NOTE = {"en": "Their message:", "pt": "A mensagem que deixou:"}
SOMEBODY = {"en": "The operator", "pt": "O operador"}
FORGOTTEN = {
    "en": (
        "Choose a new password",
        """Hello {name},

somebody requested a new password for {email}. If it was you, \
sign in with this link and choose one. The link is valid for 30 minutes and can be used once:

{link}

If it was not you, there is nothing you need to do: your password is unchanged.
""",
    ),
    "pt": (
        "Escolha uma nova palavra-passe",
        """Olá, {name},

alguém pediu uma nova palavra-passe para {email}. \
Se foi você, inicie sessão com esta ligação e escolha uma. É válida durante 30 minutos e para uma só utilização:

{link}

Se não foi você, não precisa de fazer nada: a sua palavra-passe continua a mesma.
""",
    ),
}
CONFIRM = {
    "en": (
        "Confirm that it is you",
        """Hello {name},

somebody who is signed in to your account on Heliograph ({email}) is about to change something that only you should \
be able to change. If it was you, open this link in the same browser. It is valid for 30 minutes and can be used once:

{link}

If it was not you, do not open it: nothing has been changed. Sign in and end your other sessions under "My account".
""",
    ),
    "pt": (
        "Confirme que é você",
        """Olá, {name},

alguém com sessão iniciada na sua conta do Heliograph ({email}) quer alterar algo que só você deve poder alterar. \
Se foi você, abra esta ligação no mesmo navegador. É válida durante 30 minutos e para uma só utilização:

{link}

Se não foi você, não a abra: nada foi alterado. Inicie sessão e termine as suas outras sessões em "A minha conta".
""",
    ),
}
NEW_EMAIL = {
    "en": (
        "Confirm your e-mail address",
        """Hello {name},

somebody wants to sign in to Heliograph with {email} from now on. If it was you, confirm it with this link, which is \
valid for one hour and can be used once:

{link}

If it was not you, there is nothing you need to do: nothing will change.
""",
    ),
    "pt": (
        "Confirme o seu endereço de e-mail",
        """Olá, {name},

alguém quer passar a iniciar sessão no Heliograph com {email}. Se foi você, confirme-o com esta ligação, válida \
durante uma hora e para uma só utilização:

{link}

Se não foi você, não precisa de fazer nada: nada foi alterado.
""",
    ),
}
EMAIL_ASKED = {
    "en": (
        "Somebody wants to change your e-mail address",
        """Hello {name},

somebody who is signed in to your account on Heliograph asked to replace this address with {email}. \
Nothing changes unless the link sent to that address is opened within an hour.

If it was not you, change your password now: that ends all other sessions and invalidates the link.
""",
    ),
    "pt": (
        "Alguém quer alterar o seu endereço de e-mail",
        """Olá, {name},

alguém com sessão iniciada na sua conta do Heliograph pediu que {email} ficasse no lugar deste endereço. Nada é \
alterado até que seja aberta, no prazo de uma hora, uma ligação enviada para lá.

Se não foi você, escolha já outra palavra-passe: isso termina todas as outras sessões e, com elas, a ligação.
""",
    ),
}
FORMER_EMAIL = {
    "en": (
        "Your e-mail address was changed",
        """Hello {name},

your account on Heliograph no longer belongs to this address: it was replaced by {email}, and all other sessions were \
ended. If it was not you, tell an owner of your organization, or the operator of the service, at once.
""",
    ),
    "pt": (
        "O seu endereço de e-mail foi alterado",
        """Olá, {name},

a sua conta no Heliograph já não pertence a este endereço: {email} ficou no lugar dele, e todas as outras sessões \
foram terminadas. Se não foi você, avise já um proprietário da sua organização, ou quem gere o serviço.
""",
    ),
}
TEST = {
    "en": (
        "Test mail from Heliograph",
        "Mails from Heliograph reach this address. Nobody needs to do anything.\n",
    ),
    "pt": (
        "E-mail de teste do Heliograph",
        "Os e-mails do Heliograph chegam a este endereço. Ninguém precisa de fazer nada.\n",
    ),
}


def test(language: str, *, to: str) -> Mail:
    """The test mail by which an operator checks that mails arrive."""
    return Mail(to, *TEST[language])


def invitation(language: str, *, to: str, organization: str, inviter: str | None, note: str, link: str) -> Mail:
    """`inviter`: a name; None: the operator."""
    subject, text = INVITATION[language]
    quoted = "".join(f"> {line}\n" for line in note.splitlines())
    values = {
        "organization": organization,
        "inviter": inviter or SOMEBODY[language],
        "note": f"\n{NOTE[language]}\n{quoted}" if quoted else "",
        "link": link,
    }
    return Mail(to, subject.format(**values), text.format(**values))


def forgotten(language: str, *, to: str, name: str, link: str) -> Mail:
    """A link to choose a new password."""
    subject, text = FORGOTTEN[language]
    return Mail(to, subject, text.format(name=name, email=to, link=link))


def confirm(language: str, *, to: str, name: str, link: str) -> Mail:
    """A link by which somebody who is signed in confirms that it is them."""
    subject, text = CONFIRM[language]
    return Mail(to, subject, text.format(name=name, email=to, link=link))


def new_email(language: str, *, to: str, name: str, link: str) -> Mail:
    """A link to confirm an address that somebody wants to sign in with."""
    subject, text = NEW_EMAIL[language]
    return Mail(to, subject, text.format(name=name, email=to, link=link))


def email_asked(language: str, *, to: str, name: str, email: str) -> Mail:
    """To the present address: somebody wants another one."""
    subject, text = EMAIL_ASKED[language]
    return Mail(to, subject, text.format(name=name, email=email))


def former_email(language: str, *, to: str, name: str, email: str) -> Mail:
    """To the address that was replaced by `email`."""
    subject, text = FORMER_EMAIL[language]
    return Mail(to, subject, text.format(name=name, email=email))
