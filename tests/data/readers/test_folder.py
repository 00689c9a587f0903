import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.data.prepare import prepare
from diti.data.readers.folder import ffhq_split, folder_split, is_ffhq, list_images, open_source
from diti.data.source import ReadOptions


def test_images_of_any_nesting_in_order(image_folder):
    (image_folder / ".hidden").mkdir()
    (image_folder / ".hidden" / "x.png").write_bytes(b"")
    (image_folder / "notes.txt").write_text("x")
    files = list_images(image_folder)
    assert files == sorted(files) and len(files) == 12 and files[0] == "a/00.png"


def test_names_with_spaces_and_other_letters(tmp_path):
    folder = tmp_path / "Bilder – été"
    names = ["ein bild.png", "größe/日本.PNG", "x'y\"z.jpeg"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (9, 8, 7)).save(folder / name)
    dataset = prepare(open_source(folder, ReadOptions()), tmp_path / "out put", 8)
    assert sorted(dataset.table["file"].to_pylist()) == sorted(names)


def test_attributes_beside_the_images_or_named(image_folder, tmp_path):
    rows = [f"{'ab'[i % 2]}/{i:02d}.png,{i % 2},{i / 2},{('train', 'test')[i % 2]},p{i // 2}" for i in range(12)]
    text = "\n".join(["file,hat,age,split,identity", *rows])
    (tmp_path / "elsewhere.csv").write_text(text)
    named = open_source(image_folder, ReadOptions(attributes=tmp_path / "elsewhere.csv"))
    (image_folder / "labels.csv").write_text(text)
    beside = open_source(image_folder, ReadOptions())
    for source in (named, beside):
        assert source.table.column_names == ["file", "split", "identity", "hat", "age"]
        row = source.table["file"].to_pylist().index("b/07.png")
        assert source.table.slice(row, 1).to_pylist()[0] == {
            "file": "b/07.png", "split": "test", "identity": "p3", "hat": 1, "age": 3.5,
        }  # fmt: skip


def test_only_labelled_keeps_rows_and_images_together(image_folder):
    (image_folder / "attributes.csv").write_text("file,hat\nb/03.png,1\na/10.png,0\n")
    with pytest.raises(InputError, match="has a row for 2 of 12 images"):
        open_source(image_folder, ReadOptions())
    source = open_source(image_folder, ReadOptions(only_labelled=True))
    paths = list(source.read([0, 1]))
    assert [p.name for p in paths] == ["10.png", "03.png"] and source.table["hat"].to_pylist() == [0, 1]


def test_split_folders():
    assert folder_split(["train/a.png", "val/b.png", "test/x/c.png"]) == ["train", "valid", "test"]
    assert folder_split(["train/a.png", "b.png"]) is None
    assert folder_split(["0/a.png", "1/b.png"]) is None, "numbered folders are classes or shards, not splits"


def test_ffhq_by_its_names_and_split():
    files = ["00000/00007.png", "59000/59999.png", "60000/60000.png"]
    assert is_ffhq(files) and ffhq_split(files) == ["train", "train", "valid"]
    assert ffhq_split(files[:2]) is None, "a part of FFHQ still needs images to validate on"
    assert not is_ffhq(["00000/00007.jpg"])


def test_ffhq_folder_is_named_so(tmp_path):
    for name in ("00000/00001.png", "60000/60001.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    assert open_source(tmp_path, ReadOptions()).name == "ffhq"


def test_bad_folders(tmp_path, image_folder):
    with pytest.raises(InputError, match=r"holds no images \(it is empty\)"):
        (tmp_path / "empty").mkdir()
        open_source(tmp_path / "empty", ReadOptions())
    (tmp_path / "empty" / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"it holds a\.txt"):
        open_source(tmp_path / "empty", ReadOptions())
    with pytest.raises(InputError, match=r"no\.csv does not exist"):
        open_source(image_folder, ReadOptions(attributes=tmp_path / "no.csv"))
    with pytest.raises(InputError, match="need a table of attributes"):
        open_source(image_folder, ReadOptions(ignore=("x",)))
