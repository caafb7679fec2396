"""GPQA Diamond. Idavidrein's set has Question, `Correct Answer` and `Incorrect Answer 1` to 3. Whoever wants it has to accept
its conditions on the Hub, which ask not to put its questions online."""

from .benchmark import Benchmark
from .choices import CORRECT, INCORRECT, named_choices
from .rows import HubSet

TASK = Benchmark(
    "gpqa_diamond",
    about="GPQA Diamond: 198 questions of sciences, four choices each",
    copies=(HubSet("Idavidrein/gpqa", "train", "gpqa_diamond"),),
    question=("Question",),
    answer=(CORRECT,),
    columns=tuple(f"{INCORRECT}{number}" for number in (1, 2, 3)),
    choices=named_choices,
    shuffle=0,
    rows=(198,),
)
