"""Fake secrets of every known form, and every byte that the test server has got."""

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq

# Forms of secrets, {} where a distinct part goes. In pieces, so that no scanner takes this file for a leak.
FORMS = {
    "hugging face": "hf" + "_{}{}",
    "hugging face oauth": "hf_" + "oauth_{}.{}",
    "hugging face jwt": "hf_" + "jwt_{}",
    "hugging face organisation": "api_" + "org_{}{}",
    "wandb, by hand": "wandb" + "_v1_{}{}",
    "openai": "sk" + "-{}{}",
    "openai project": "sk" + "-proj-{}",
    "anthropic": "sk" + "-ant-api03-{}",
    "github": "gh" + "p_{}{}",
    "github app": "gh" + "o_{}{}",
    "github, fine-grained": "github" + "_pat_{}_{}",
    "aws": "AK" + "IA{}",
    "google": "AI" + "za{}{}",
    "slack": "xo" + "xb-{}-{}",
    "groq": "gs" + "k_{}{}{}",
    "xai": "xa" + "i-{}{}{}",
    "nvidia": "nv" + "api-{}{}{}",
    "perplexity": "pp" + "lx-{}{}{}",
    "replicate": "r" + "8_{}{}",
    "google oauth": "ya" + "29.{}{}",
    "google client": "GOC" + "SPX-{}{}",
    "azure": "Account" + "Key={}{}==",
    "databricks": "export DATABRICKS" + "_TOKEN={}",
    "vault": "hv" + "s.{}{}",
    "sendgrid": "S" + "G.{}.{}",
    "docker": "dckr" + "_pat_{}{}",
    "grafana": "gl" + "sa_{}{}_0123abcd",
    "gitlab deploy": "gl" + "dt-{}",
    "discord": "https://disc" + "ord.com/api/webhooks/123456/{}",
    "discord bot": "M" + "TA{}{}.abcdef.{}{}".replace("{}{}.a", "{}01234567.a"),
    "telegram": "123456789" + ":AA{}{}0",
    "aws secret": "aws_secret" + "_access_key = {}",
    "netrc": "machine host.test login me pass" + "word {}",
    "password in JSON": '"pass' + 'word": "{}"',
    "header": "X-Api" + "-Key: {}",
    "cookie": "Coo" + "kie: session={}",
    "dsn": "Server=db;User=me;Pass" + "word={};",
    "jdbc": "jdbc:postgresql://db/x?user=me&pass" + "word={}",
    "bearer": "Bear" + "er {}",
    "json web token": "ey" + "J{}.{}.x",
    "private key": "-----BEGIN RSA PRIVATE " + "KEY-----\n{}\n-----END RSA PRIVATE " + "KEY-----",
    "user in an address": "https://user" + ":{}@host.test/x",
    "token in an address": "https:" + "//{}@host.test/x",
    "docker's file": '"au' + 'th": "{}{}=="',
    "flag": "mysql --pass" + "word {}",
    "query": "https://host.test/x?to" + "ken={}",
    "shared access signature": "https://blob.test/x?sv=1&si" + "g={}%3D",
    "environment": "WANDB_API" + "_KEY={}",
}


def needles():
    """Distinct texts of 16 signs that every form of a secret may hold."""
    return (f"NEEDLE{number:06d}WXYZ" for number in itertools.count())


def secrets(found: list[str]):
    """Distinct fake secrets of every form in turn; what is secret in each goes to `found`."""
    for needle, form in zip(needles(), itertools.cycle(FORMS.values())):
        found.append(needle)
        yield form.replace("{}", needle)


def received(hub) -> bytes:
    """Every byte that the Hub has got, tables decompressed."""
    whole = [*hub.bodies, *hub.blobs.values(), *(request.encode() for request in hub.requests)]
    for repo in hub.repos.values():
        whole.append(json.dumps([*repo.tags, *repo.branches, repo.settings]).encode())
        for commit in repo.commits.values():
            whole += [commit.title.encode(), *(path.encode() for path in commit.files)]
            whole += [readable(path, file.content) for path, file in commit.files.items()]
    return b"\n".join(whole)


def readable(path: str, content: bytes) -> bytes:
    if not path.endswith(".parquet"):
        return content
    table = pq.read_table(pa.BufferReader(content))
    return f"{table.schema.to_string(show_field_metadata=True)}{table.to_pylist()}".encode()


def leaked(hub, found) -> list[str]:
    text = received(hub)
    return [needle for needle in found if needle.encode() in text]


TOKENIZER = {  # keys and values of tokenizers as they are published, old ones among them
    "use_auth_token": None,
    "token": None,
    "auth_token": True,
    "unk_token": "<unk>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False},
    "pad_token": "!",
    "bos_token": "<｜begin▁of▁sentence｜>",
    "image_token": "<image>",
    "boi_token": {"__type": "AddedToken", "content": "<start_of_image>"},
    "word_delimiter_token": "|",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}},
    "max_tokens": 5,
    "model_max_length": 1e30,
    "token_type_ids": "x",
    "tokenizer_class": "Qwen2Tokenizer",
    "name_or_path": "Qwen/Qwen3-8B",
    "pad_token_id": 0,
    "key": 7,
    "chat_template": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}",
}
