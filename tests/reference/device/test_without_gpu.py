"""Without a usable GPU there is one clear message, and the virtual device is the way out."""

import subprocess
import sys

import pytest
import torch
from small_traffic import SAMPLE

from kvfence.checker.cli.app import run as main
from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.driver.driver import NoDevice, open_driver
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_a_missing_device_is_one_message_that_names_the_way_out():
    with pytest.raises(NoDevice, match=r"no CUDA device: .+; the virtual device .+ needs no GPU"):
        open_driver()


@without_gpu
def test_a_replay_on_a_missing_device_says_the_same():
    with pytest.raises(NoDevice, match="the virtual device"):
        run(conversations(2, 0), Options(device="cuda", block_size=4, gpu_blocks=300, cpu_blocks=600))


@without_gpu
def test_the_command_line_says_it_in_one_line(capsys):
    assert main(["replay", str(SAMPLE), "--device", "cuda", "--requests", "2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "no CUDA device" in printed.err


@pytest.mark.parametrize("unsupported", [{"ranks": 2}, {"fail_rate": 0.1}, {"repeat_rate": 0.5}])
def test_what_only_the_virtual_device_can_do_is_refused(unsupported):
    with pytest.raises(OptionsError, match="use the virtual device"):
        Options(device="cuda", **unsupported)


def test_importing_every_module_loads_nothing_of_cuda():
    device = ("cuda", "cuda_runner", "platform", "metrics")
    modules = ["copy.auto", *(f"device.{name}" for name in device), "replay"]
    code = "import sys, torch\nbefore = set(sys.modules)\n"
    code += "\n".join(f"import kvfence.reference.{name}" for name in modules)
    code += "\nnew = set(sys.modules) - before"
    code += "\nassert not [m for m in new if m.startswith(('cuda', 'prometheus_client'))]"
    subprocess.run([sys.executable, "-c", code], check=True)
