"""Which release wrote the store: what files, records and index entries give away."""

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import Era, Mark, detect_eras, record_marks


class MarkCollector:
    """Keeps the marks that say something new: one for each change of a switch."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._marks: list[Mark] = []
        self._last: dict[str, tuple[object, ...]] = {}

    def add(self, mark: Mark | None) -> None:
        """Keep *mark* if it is news."""
        if mark is not None and self._last.get(mark.switch) != mark.values:
            self._last[mark.switch] = mark.values
            self._marks.append(mark)

    def see(self, record: MessageRecord) -> None:
        """Note what a record gives away."""
        for mark in record_marks(record):
            self.add(mark)

    def eras(self) -> tuple[Era, ...]:
        """Say who wrote the store."""
        return detect_eras(self._marks)
