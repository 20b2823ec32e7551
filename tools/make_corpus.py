#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus for the training examples and tests: JSON lines, one document each.

    make_corpus.py DATA OUT

DATA holds grimms_fairy_tales.txt, war_and_peace.txt and tinyshakespeare.txt (sources and hashes are in
tests/data/README.md). Writes corpus.jsonl and heldout.jsonl to OUT, which is tests/data. A document is a tale, a chapter or a
scene; prose has one line per paragraph, verse is unchanged. Needs only the standard library; the same files give the same bytes.
"""
import hashlib
import json
import pathlib
import re
import sys

SOURCES = {
    "grimms_fairy_tales.txt": "6a3ab3e88661459f26e2211e48294d695ea1e9cf6af88628d9414642b996db45",
    "war_and_peace.txt": "eaecfcb30408e2bc35ffe69b297127e3a6ca75548c033df4d2e703b5ff711f8d",
    "tinyshakespeare.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}
CHAPTERS = 30  # number of War and Peace's first chapters
SCENE_BYTES = 220_000  # bytes of Shakespeare's scenes, from the first play on
SPEECHES = 5  # a scene ends where no speaker of the last SPEECHES speeches is among those of the next SPEECHES
SCENE_LEAST = 600  # characters; a shorter piece is an exchange within a scene
HELD_OUT = 20  # holds out one of this many documents of each source


def read(data, name):
    content = (data / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != SOURCES[name]:
        sys.exit(f"{data / name} is not the file that the corpus is made of: sha256 {SOURCES[name]} is")
    return content.decode("utf-8")


def paragraphs(text):
    """Joins the lines of each paragraph into one; drops footnotes and their marks."""
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.lstrip().startswith("*"):
            continue
        line = re.sub(r" ?\*(\(\d+\))?", "", " ".join(block.split()))
        if line:
            out.append(line)
    return "\n\n".join(out)


def tales(text):
    """Splits at lines of capitals after three or more empty lines, where a tale begins."""
    for part in re.split(r"(?:\A|\n{4,})(?!FIRST STORY|SECOND STORY)(?=[A-Z][A-Z',’ \-]+\n)", text):
        if part.strip():
            title, _, body = part.strip().partition("\n")
            yield "The Brothers Grimm", title, title + "\n\n" + paragraphs(body)


def chapters(text):
    text = text.split("\nBOOK TWO")[0] + "\n" + text.split("\nBOOK TWO", 1)[1].split("\n", 1)[1]
    parts = re.split(r"^CHAPTER ([IVXL]+)$", text, flags=re.M)[1:]
    for i in range(CHAPTERS):
        number, body = parts[2 * i], parts[2 * i + 1]
        book = "One" if i < 28 else "Two"
        yield "Tolstoy, War and Peace", f"Book {book}, chapter {number}", paragraphs(body)


def scenes(text):
    """The file does not mark scenes, so finds them by who speaks."""
    speeches = text.strip().split("\n\n")
    speakers = [speech.split("\n")[0] for speech in speeches]
    scene = []
    for i, speech in enumerate(speeches):
        before, after = speakers[max(0, i - SPEECHES):i], speakers[i:i + SPEECHES]
        if scene and not set(before) & set(after) and len("\n\n".join(scene)) >= SCENE_LEAST:
            yield "\n\n".join(scene)
            scene = []
        scene.append(speech)
    yield "\n\n".join(scene)


def shakespeare(text):
    taken = 0
    for number, scene in enumerate(scenes(text), 1):
        if taken > SCENE_BYTES:
            return
        taken += len(scene)
        yield "Shakespeare", f"scene {number}", scene


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    documents = [*tales(read(data, "grimms_fairy_tales.txt")), *chapters(read(data, "war_and_peace.txt")),
                 *shakespeare(read(data, "tinyshakespeare.txt"))]
    # Shuffle, so that any part of the file has all three sources; by hash, so that the order is always the same.
    documents.sort(key=lambda d: hashlib.sha256(d[2].encode()).digest())
    held = {title for name in {d[0] for d in documents}
            for _, title, _ in [d for d in documents if d[0] == name][::HELD_OUT]}
    for name, held_out in (("corpus.jsonl", False), ("heldout.jsonl", True)):
        part = [d for d in documents if (d[1] in held) == held_out]
        lines = [json.dumps({"source": source, "title": title, "text": text}, ensure_ascii=False)
                 for source, title, text in part]
        content = ("\n".join(lines) + "\n").encode()
        (out / name).write_bytes(content)
        sizes = sorted(len(text) for _, _, text in part)
        print(f"{out / name}: {len(part)} documents of {sizes[0]} to {sizes[-1]} characters, {len(content)} bytes, "
              f"sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
