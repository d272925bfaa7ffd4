"""GSM septets as Latin-1 or ASCII, for suppliers whose data_coding 0 means one of those (3GPP 23.038 §6.2.1)."""

from __future__ import annotations

#: A septet's character is at its index; 0x1B is the escape.
BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\x1bÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
EXTENSION = {
    0x0A: "\f",
    0x14: "^",
    0x28: "{",
    0x29: "}",
    0x2F: "\\",
    0x3C: "[",
    0x3D: "~",
    0x3E: "]",
    0x40: "|",
    0x65: "€",
}


def text_of(septets: bytes) -> str:
    """Unpacked septets as text. An escape without a known successor is dropped, as handsets do."""
    out, escaped = [], False
    for septet in septets:
        if escaped:
            out.append(EXTENSION.get(septet, BASIC[septet & 0x7F]))
            escaped = False
        elif septet == 0x1B:
            escaped = True
        else:
            out.append(BASIC[septet & 0x7F])
    return "".join(out)
