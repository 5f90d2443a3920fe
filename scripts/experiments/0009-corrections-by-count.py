"""Should the corrections of common features weigh less than those of rare ones, or more?

Neither: what it wins on some streams it loses on others. A correction is read by (1 + messages that
hold the feature) ** -fading. 1-AUC %, and features a message (streams: `streams`, on `arrays`):

                          fea- shuf-  in a   halves few    few    newer  gene-  begun  wrong  errors
                          ture fled   row           spam   ham    spam   rated         labels only
    as they are            330 0.0487 0.127  0.0761 0.610  0.449  0.0005 0.166  5.87   0.141  0.0739
    fading 0.25, eta 8     330 0.0510 0.313  0.0754 0.468  0.459  0.0010 0.146  5.01   0.151  0.0567
    fading 0.25, eta 12    330 0.0472 0.215  0.0711 0.443  0.440  0.0009 0.151  5.28   0.161  0.0631
    fading 0.25, eta 20    330 0.0459 0.160  0.0743 0.433  0.445  0.0009 0.191  6.10   0.183  0.0872
    fading 0.5, eta 16     330 0.0547 0.422  0.0774 0.443  0.467  0.0016 0.160  5.07   0.181  0.0618
    fading 0.5, eta 32     330 0.0488 0.233  0.0727 0.374  0.448  0.0012 0.215  5.96   0.225  0.0919
    fading -0.125, eta 6   330 0.0608 0.0918 0.0895 0.848  0.498  0.0016 0.200  6.19   0.136  0.0808
    fading -0.25, eta 3    330 0.0701 0.621  0.0938 1.262  0.524  0.0019 0.192  5.98   0.147  0.0801

Spam missed in % at 0.1 % of ham lost:

    as they are                6.19   0.47   4.85   26.2   25.1   0.25   9.07   55.5   15.4   6.41
    fading 0.25, eta 8         7.24   1.42   4.59   26.6   24.6   0.25   11.2   55.0   15.6   6.33
    fading 0.25, eta 12        6.89   1.11   4.54   24.6   24.3   0.25   11.6   58.6   15.8   6.20
    fading 0.25, eta 20        6.47   0.53   5.06   25.0   23.6   0.25   12.8   61.5   16.8   8.28
    fading -0.125, eta 6       7.74   0.32   6.38   28.9   25.9   0.49   9.57   56.5   17.2   8.60

Rare features that learn more rank better where spam is rare (by a quarter), where little is known
yet and where little is told; they take wrong labels to heart (worse by a seventh), and one class
after the other costs nearly twice as much. Common features that learn more are the reverse.
"""

from arrays import Variant, all_streams, compare, picked
from lab import Constants


def fading(by, eta=8.0):
    return Variant(f"fading {by}, eta {eta:g}", constants=Constants(fading=by, eta=eta))


VARIANTS = [
    Variant("as they are (default)"),
    fading(0.25),
    fading(0.25, 12.0),
    fading(0.25, 20.0),
    fading(0.5, 16.0),
    fading(0.5, 32.0),
    fading(-0.125, 6.0),
    fading(-0.25, 3.0),
]


if __name__ == "__main__":
    compare(picked(VARIANTS), all_streams())
