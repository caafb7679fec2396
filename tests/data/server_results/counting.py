from openrlhf_ebpo.eval.tasks import Benchmark

rows = tuple({"question": f"Say {n} words.", "words": n} for n in (1, 2, 3))
TASK = Benchmark("count", data=rows, answer=(), score=lambda response, gold, row: len(response.split()) == row["words"])
