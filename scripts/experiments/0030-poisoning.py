"""What can one person do to the mail of others with the worst corrections that a search finds?

A model of 4,546 messages (SpamAssassin corpus, seed 7); 300 more are the attacker's own mail, the
other 1,200 are other people's and are judged. Before each word 15 to 40 messages are tried
(`poisoning`), by an attacker who knows every count, and the worst is said, all within a day.
Harm in percent of others' ham and spam: not delivered / delivered (before the words: 0.59 / 0.58).

    words                                            1      5     10     20     50    100
    until now: steps repeated    called spam       9.4   95.8   99.9   99.9
                                 called ham        3.5   92.2   99.4  100
    one doubted step, the rest on rare features, no budget (5 words 29.9 / 14.1, 20: 99.9 / 97.7)
    one doubted step of a budget, the rest on rare features and the message's own
                                 called spam      0.59   0.94   1.06   1.52   1.76   1.64
                                 called ham       0.58   1.73   1.73   2.02

So one plain step is no bound: who knows the model writes mail that it finds hardly spam, where the
doubted step is longest, of the words that others use. What bounds the harm is the sum of a person's
steps in a day: 0.5 of a full one. Counts alone, without any step, cost 1.3 points of ham and 1.7 of
spam after 20 words (copies of the judged mail among the tries, as in the third row). The eight
rarest features of a message of common words are common words: instead the rest goes to a feature
that is the message's own, its digest. Five people have five budgets: 20 words of them together cost
4.7 points of ham or 4.3 of spam.

What it costs: errors-only teaching by explicit corrections, 100 messages a day, the last 1,500 held
out; spam filed of 433 / 462, labels needed, 1-AUC over all messages, seeds 7 / 8:

    until now                                  303 / 176   340 / 351   0.0954 / 0.0713 %
    one plain step, no budget                  245 / -     350 / -     0.0908 / -
    budget 0.5 for each person                  61 /  75   764 / 685   0.1037 / 0.0722 %
    ... and 400 / messages of the rarer label  206 / 172   376 / 389   0.0794 / 0.0656 %
    0.5 by the share of others' messages       279 / 213   347 / 349   0.0878 / 0.0697 %
    ... five people in turn                    168 / 117   441 / 464   0.0736 / 0.0646 %

The fourth leaves a model of 240 messages open: five natural corrections keep 48 % of ham from being
delivered, with the fifth, which is taken, 10 % (until now 77 %, and 6 % before them).
"""

import sys

from poisoning import oscillate, site, spend

SHOWN = (1, 5, 10, 20, 50, 100)


def main(words: int) -> None:
    for label in ("spam", "ham"):
        print(f"called {label}: before         ", site().harm(), flush=True)
        for people in (1, 5):
            for number, harm in enumerate(spend(site(), label, words, tries=25, people=people), 1):
                if number in SHOWN:
                    print(f"  {people} people, {number:3d} words      ", harm, flush=True)
        made = site()
        raws = [raw for raw, truth in made.own if truth != label][:5]
        print("  five messages, to and fro", oscillate(made, raws, label, 10), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SHOWN[-1])
