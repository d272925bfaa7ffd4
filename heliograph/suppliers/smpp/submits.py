"""Turns a Submission into submit_sm PDUs for one account: addresses, encodings, and how segments are joined. Pure.

The rule nobody may break: if possible, a segment is sent as it was split at acceptance. The text is split again only if
this account's form leaves less room: a longer header, or UCS-2 instead of an alphabet that lacks a character.
"""

from __future__ import annotations

from heliograph.suppliers.alphabets import cutting, gsm7
from heliograph.suppliers.alphabets.national import IDENTIFIERS
from heliograph.suppliers.contract import Submission
from heliograph.suppliers.smpp.codec.pdu import NO_TLVS, PduError, SubmitSm, Tag
from heliograph.suppliers.smpp.settings import SmppSettings

#: The esm_class bit for user data that begins with a header (SMPP 3.4 §5.2.12).
UDHI = 0x40
#: The longest period in the relative form without carrying into months.
_MAX_VALIDITY = 30 * 86_400


class Builder:
    """Writes submit_sm for one account."""

    def __init__(self, settings: SmppSettings) -> None:
        self._settings = settings
        self._vendor = settings.tlvs
        # Octets of the concatenation header. For SAR, and a payload that they cut themselves, SMSCs write one of six.
        self._header = 7 if settings.long_messages == "udh16" else 6
        self._tables = _tables(settings)
        self._validities: dict[int, str] = {}

    def count(self, submission: Submission) -> int:
        """The number of PDUs that `build` returns for it. Raises PduError as `build` does."""
        if self._settings.long_messages == "payload":
            return 1
        return self.segments(submission)

    def segments(self, submission: Submission) -> int:
        """The number of segments it takes, in however many PDUs. Raises PduError as `build` does."""
        return len(self._encode(submission)[0])

    def build(self, submission: Submission) -> list[SubmitSm]:
        """One PDU per segment, in order; a single one with `payload`. Raises PduError if it cannot be encoded."""
        settings = self._settings
        segments, coding, elements = self._encode(submission)
        total = len(segments)
        reference = submission.reference & 0xFFFF
        tlvs = self._vendor
        if settings.user_message_reference:
            tlvs = {Tag.USER_MESSAGE_REFERENCE: reference.to_bytes(2, "big"), **tlvs}
        if total == 1 and elements:
            data = bytes((len(elements),)) + elements + segments[0]
            return [self._one(submission, data, coding, settings.esm_class | UDHI, tlvs)]
        if total == 1:
            return [self._one(submission, segments[0], coding, settings.esm_class, tlvs)]
        if settings.long_messages == "payload":
            whole = {**tlvs, Tag.MESSAGE_PAYLOAD: b"".join(segments)}
            return [self._one(submission, b"", coding, settings.esm_class, whole)]
        if total > 255:
            raise PduError("more than 255 segments")
        pdus = []
        for number, segment in enumerate(segments, 1):
            if settings.long_messages == "sar":
                sar = {
                    Tag.SAR_MSG_REF_NUM: reference.to_bytes(2, "big"),
                    Tag.SAR_TOTAL_SEGMENTS: bytes((total,)),
                    Tag.SAR_SEGMENT_SEQNUM: bytes((number,)),
                }
                pdus.append(self._one(submission, segment, coding, settings.esm_class, {**tlvs, **sar}))
                continue
            if settings.long_messages == "udh8":
                place = bytes((0, 3, reference & 0xFF, total, number))
            else:
                place = bytes((8, 4, reference >> 8, reference & 0xFF, total, number))
            header = bytes((len(place) + len(elements),)) + place + elements
            pdus.append(self._one(submission, header + segment, coding, settings.esm_class | UDHI, tlvs))
        return pdus

    def _one(
        self, submission: Submission, data: bytes, coding: int, esm_class: int, tlvs: dict[int, bytes]
    ) -> SubmitSm:
        settings = self._settings
        if len(data) > 254:
            raise PduError(f"a segment of {len(data)} octets")
        sender, (ton, npi) = self._sender(submission.sender)
        ton, npi = submission.sender_numbering or (ton, npi)
        numbering = submission.numbering or settings.destination
        return SubmitSm(
            0,
            0,
            settings.service_type,
            ton,
            npi,
            sender,
            *numbering,
            submission.address or submission.to,
            esm_class,
            settings.protocol_id,
            max(settings.priority, settings.urgent_priority) if submission.priority else settings.priority,
            "",
            self._validity(submission.validity_seconds),
            settings.registered_delivery,
            0,  # replace_if_present: 1 could silently overwrite an earlier message
            coding,
            0,
            data,
            tlvs or NO_TLVS,
        )

    def _sender(self, sender: str) -> tuple[str, tuple[int, int]]:
        if sender.startswith("+"):
            return sender[1:], self._settings.international
        if not (sender.isascii() and sender.isdigit()):
            return sender, self._settings.alphanumeric
        return sender, self._settings.short_code if len(sender) <= 8 else self._settings.international

    def _validity(self, seconds: int | None) -> str:
        """The relative form (SMPP 3.4 §7.1.1.2), which does not depend on our clock."""
        if self._settings.validity == "none":
            return ""
        seconds = min(seconds or self._settings.validity_seconds, _MAX_VALIDITY)
        if seconds <= 0:
            return ""
        text = self._validities.get(seconds)
        if text is None:
            days, rest = divmod(seconds, 86_400)
            text = f"0000{days:02d}{rest // 3600:02d}{rest // 60 % 60:02d}{rest % 60:02d}000R"
            if len(self._validities) < 1000:
                self._validities[seconds] = text
        return text

    def _encode(self, submission: Submission) -> tuple[tuple[bytes, ...], int, bytes]:
        """Segments, their data_coding, and the header elements that name national tables.

        They are in what this account calls its default alphabet, or UCS-2 if that lacks one of the characters.
        """
        settings = self._settings
        try:
            cut = submission.segments
        except ValueError as error:
            raise PduError(str(error)) from None
        if submission.encoding == "ucs2":
            segments = self._fitting(cut, "ucs2")
            shifted = self._shifted(segments) if self._tables else None
            return shifted or (segments, settings.data_coding_ucs2, b"")
        segments = self._fitting(cut, "gsm7")
        if settings.default_alphabet == "gsm":
            return segments, settings.data_coding_gsm7, b""
        # The SMSC turns each character into its septets, so each segment holds the same characters as before.
        codec = "latin-1" if settings.default_alphabet == "latin1" else "ascii"
        try:
            return tuple(gsm7.decode(segment).encode(codec) for segment in segments), settings.data_coding_gsm7, b""
        except UnicodeEncodeError:
            wide = gsm7.decode(b"".join(segments)).encode("utf-16-be")
        if len(wide) <= cutting.units_in(0):
            return (wide,), settings.data_coding_ucs2, b""
        return cutting.cut_units(wide, cutting.units_in(self._header)), settings.data_coding_ucs2, b""

    def _shifted(self, wide: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], int, bytes] | None:
        """The same in national tables, if that takes fewer segments; ties go to the shortest header."""
        text = b"".join(wide).decode("utf-16-be", "replace")
        best: tuple[tuple[bytes, ...], int, bytes] | None = None
        fewest = len(wide)
        for elements, locking, single in self._tables:
            septets = gsm7.shifted(text, locking, single)
            if septets is None:
                continue
            if len(septets) <= cutting.septets_in(1 + len(elements)):
                segments: tuple[bytes, ...] = (septets,)
            elif self._settings.long_messages in ("udh8", "udh16"):
                segments = cutting.cut_septets(septets, cutting.septets_in(self._header + len(elements)))
            else:
                continue  # the SMSC writes the header of each segment
            if len(segments) < fewest:
                fewest, best = len(segments), (segments, self._settings.data_coding_gsm7, elements)
        return best

    def _fitting(self, segments: tuple[bytes, ...], encoding: str) -> tuple[bytes, ...]:
        """Unchanged if they fit after this account's header; else split again."""
        if len(segments) == 1:
            return segments
        gsm = encoding == "gsm7"
        size = cutting.septets_in(self._header) if gsm else cutting.units_in(self._header)
        if max(map(len, segments)) <= size:
            return segments
        whole = b"".join(segments)
        return cutting.cut_septets(whole, size) if gsm else cutting.cut_units(whole, size)


def _tables(settings: SmppSettings) -> list[tuple[bytes, int, int]]:
    """All combinations of national tables an account allows: header elements, locking and single shift. Shortest first.

    (3GPP 23.040 §9.2.3.24.15: single shift, §9.2.3.24.16: locking shift; one octet, the language's identifier.)
    """
    singles = [0, *(IDENTIFIERS[language] for language in settings.single_shift)]
    lockings = [0, *(IDENTIFIERS[language] for language in settings.locking_shift)]
    choices = [
        (
            (bytes((0x24, 1, single)) if single else b"") + (bytes((0x25, 1, locking)) if locking else b""),
            locking,
            single,
        )
        for locking in lockings
        for single in singles
        if locking or single
    ]
    return sorted(choices, key=lambda choice: len(choice[0]))
