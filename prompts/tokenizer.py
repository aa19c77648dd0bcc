"""The canary's tokenizer as files: one word a token, split at whitespace, case kept."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from kvfence.prompts import alphabet


def write(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into an existing folder.

    `encode` adds no special tokens of its own: a prompt's text names its <bos> and <ask> itself.
    """
    vocabulary = {spelling: token for token, spelling in enumerate(alphabet.SPELLINGS)}
    name = dict(zip(("pad", "bos", "eos", "ask", "unk"), alphabet.SPECIALS, strict=False))
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=name["unk"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in name.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        # The name that transformers 4 and 5 both know.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": name["pad"],
        "bos_token": name["bos"],
        "eos_token": name["eos"],
        "unk_token": name["unk"],
        "additional_special_tokens": [name["ask"]],
        # Cleaning up would join words with the punctuation of English text.
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
