"""Every error of this package that means something went wrong with KV memory or its settings.

    ValueError                        RuntimeError
    ├── SettingError                  ├── OutOfPagesError
    ├── RowOverflowError                   ├── OutOfRowsError
    └── MisalignedSegmentError             ├── PageAccountingError
                                      ├── StagingOverwriteError
                                      └── ResultOverrunError

All but the last are raised before anything is written: no page is taken, no row and no counter changes.
"""


class SettingError(ValueError):
    """A setting or an environment variable has a value that means nothing."""


class RowOverflowError(ValueError):
    """A request would need more columns than its `req_to_token` row has; the write would land in the next row."""


class MisalignedSegmentError(ValueError):
    """A run of slots that must start on a page boundary does not."""


class OutOfPagesError(RuntimeError):
    """The KV pool is short of pages, also after the prefix cache gave back what it could."""


class OutOfRowsError(RuntimeError):
    """Every row of `req_to_token` is taken."""


class PageAccountingError(RuntimeError):
    """Counters, rows and free list contradict each other: a page is lost, shared or freed twice."""


class StagingOverwriteError(RuntimeError):
    """A staging slot was about to be refilled while the copy that reads it was still under way."""


class ResultOverrunError(RuntimeError):
    """The slot of a step's results holds another step's, or the step read another packed block than it was given."""
