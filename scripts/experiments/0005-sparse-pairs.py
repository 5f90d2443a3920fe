"""Do sparse pairs pay: two words of the subject or the body, less than a window apart?

No. 1-AUC %, and features a message (streams: `streams`, on `arrays`; a pair keeps its gap; 100: of
the first hundred words of each part; group: pairs as a third group):

                         fea- shuf-  in a   halves few    few    newer  gene-  begun  wrong  errors
                         ture fled   row           spam   ham    spam   rated         labels only
    words                 330 0.0487 0.127  0.0761 0.610  0.449  0.0005 0.166  5.87   0.141  0.0739
    window 2              539 0.0510 0.122  0.0838 0.683  0.461  0.0007 0.180  5.79   0.172  0.0774
    window 3              754 0.0561 0.140  0.0935 0.763  0.496  0.0007 0.198  5.85   0.201  0.0888
    window 5             1187 0.0652 0.161  0.111  0.895  0.556  0.0010 0.231  5.98   0.235  0.0975
    window 2, 100         413 0.0529 0.133  0.0893 0.691  0.457  0.0014 0.179  5.79   0.163  0.0832
    window 5, 100         656 0.0692 0.153  0.121  0.884  0.542  0.0010 0.229  5.98   0.223  0.104
    subject, window 2     334 0.0488 0.129  0.0749 0.612  0.455  0.0007 0.131  5.68   0.141  0.0739
    subject, window 5     340 0.0493 0.132  0.0755 0.628  0.464  0.0007 0.121  5.60   0.143  0.0757
    window 2, group       539 0.0454 0.212  0.0798 0.578  0.395  0.0016 0.193  5.57   0.184  0.0589
    window 5, 100, group  656 0.0502 0.188  0.0966 0.619  0.407  0.0010 0.192  5.57   0.201  0.0703

Spam missed in % at 0.1 % of ham lost:

    words                     6.19   0.47   4.85   26.2   25.1   0.25   9.07   55.5   15.4   6.41
    window 2                  6.86   0.69   4.43   27.7   24.1   0.25   12.3   56.2   13.9   7.46
    window 3                  6.45   0.84   4.43   27.7   24.5   0.25   13.7   56.6   15.6   8.41
    window 5                  7.59   0.84   5.27   29.7   25.2   0.25   15.3   57.7   18.7   9.26
    window 2, 100             6.79   0.47   4.59   27.3   24.2   0.49   12.3   55.9   13.1   8.15
    window 5, 100             8.83   0.69   5.38   29.7   24.1   0.25   15.4   57.1   16.1   6.91
    subject, window 2         6.52   0.47   4.80   27.3   25.5   0.25   8.13   56.1   15.4   6.75
    subject, window 5         6.33   0.47   4.85   27.7   26.5   0.25   7.70   56.0   14.9   6.46
    window 2, group           7.10   1.16   3.69   28.9   21.6   0.49   13.7   54.9   14.9   8.41
    window 5, 100, group      6.96   0.95   4.38   27.3   21.6   0.25   14.3   55.2   16.5   6.62

Among the words they dilute what the words say: every window is worse on eight streams or more of
ten, the wider the worse, and the first hundred words cost half and lose as much. Pairs of the
subject alone are nearly free and rank better on generated mail, whose subjects are made from
phrases; elsewhere they move nothing beyond the noise (0.003) or are worse. As a group of their own
they rank better where ham is rare, little is taught or only mistakes are (by 5 to 20 %), and worse
in a row (by half and more), with wrong labels (by a third) and on generated mail, for twice the
features, and so twice the store and the time. So there are no pairs.
"""

from functools import partial

import numpy as np
from arrays import KEY, Variant, all_streams, as_corpus, compare, picked

from spamnb.core.features.extract import LEAST_BYTES, MOST_BYTES, _cut, _hash
from spamnb.core.features.tokens import TokenLocation

SEED = np.array([[3], [5]], np.uint64)
FIRST, SECOND, GAP = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667))


def pairs(message, *, window, places=(TokenLocation.SUBJECT, TokenLocation.BODY), words=None):
    """Ids of the pairs of words that stand less than `window` apart, in the first `words`."""
    found = [np.zeros(0, np.uint64)]
    for place, _, text in message:
        if place not in places:
            continue
        framed = b"\n" + text.lower() + b"\n_" + bytes(16)
        spans, _ = _cut(framed)
        size = spans.ends - spans.starts
        spans = spans.take(((size >= LEAST_BYTES) & (size <= MOST_BYTES)).nonzero()[0][:words])
        seeds = np.repeat(SEED, len(spans.starts), axis=1)
        ids = _hash(KEY, framed, spans.starts, spans.ends, seeds)
        for gap in range(1, window):
            pair = ids[:-gap] * FIRST + ids[gap:] * SECOND + np.uint64(gap + 16 * place) * GAP
            found.append(pair)
    return np.unique(np.concatenate(found))


def with_pairs(mail, group=0, **how):
    return as_corpus(mail, partial(pairs, **how), group)


SUBJECT = (TokenLocation.SUBJECT,)
VARIANTS = [
    Variant("words (default)"),
    Variant("window 2", partial(with_pairs, window=2)),
    Variant("window 3", partial(with_pairs, window=3)),
    Variant("window 5", partial(with_pairs, window=5)),
    Variant("window 2, 100", partial(with_pairs, window=2, words=100)),
    Variant("window 5, 100", partial(with_pairs, window=5, words=100)),
    Variant("subject, window 2", partial(with_pairs, window=2, places=SUBJECT)),
    Variant("subject, window 5", partial(with_pairs, window=5, places=SUBJECT)),
    Variant("window 2, group", partial(with_pairs, window=2, group=2)),
    Variant("window 5, 100, group", partial(with_pairs, window=5, words=100, group=2)),
]


if __name__ == "__main__":
    compare(picked(VARIANTS), all_streams())
