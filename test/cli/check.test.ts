import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { RunSpec } from '../../config/run-spec.ts';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import { startVllmStandIn } from '../stand-ins/vllm/server.ts';
import { openCommands } from './typed.ts';

const type = openCommands();

interface Said {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

interface Project {
  readonly folder: string;
  readonly ratchet: (...args: string[]) => Promise<Said>;
}

async function project(t: TestContext, files: Readonly<Record<string, string>>): Promise<Project> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-check-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  const ratchet = async (...args: string[]): Promise<Said> => {
    const { code, out, err } = await type(folder, args);
    return { code, stdout: out, stderr: err };
  };
  return { folder, ratchet };
}

const words = `model = "preset:reverse-text-0.2m"
batch_size = 64
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
`;
const onTheHub = words.replace('preset:reverse-text-0.2m', 'Qwen/Qwen3-8B').replace('"reverse-text"', '"my-env"');

describe('ratchet check', () => {
  test('says what a file is and what it was read as', async (t) => {
    const { ratchet } = await project(t, { 'words.toml': words });
    const { code, stdout } = await ratchet('check', 'words.toml');
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^words\.toml is a run named words, read as Ratchet \(by model = "preset:reverse-text-0\.2m"\):$/m,
    );
    assert.match(stdout, /^ {2}model {9}preset:reverse-text-0\.2m, 0\.21 M parameters$/m);
    assert.match(stdout, /^ {2}each step {5}8 groups × 8 rollouts, 100 steps/m);
  });

  test('refuses max_tokens that leave a prompt no room in the context of the model', async (t) => {
    const [head] = words.split('[sampling]');
    const env = '[[env]]\nid = "reverse-text"\n';
    const { ratchet } = await project(t, {
      'left-out.toml': `${head}${env}`,
      'in-eval.toml': `${words}[eval]\ninterval = 5\n[eval.sampling]\nmax_tokens = 200\n[[eval.env]]\nid = "reverse-text"\n`,
      'shared.toml': words.replace('max_tokens = 10', 'max_tokens = 10_000\ncontext_tokens = 32'),
    });
    const leftOut = await ratchet('check', 'left-out.toml');
    assert.equal(leftOut.code, 2);
    assert.match(
      leftOut.stdout + leftOut.stderr,
      /sampling\.max_tokens\s+expected {2}less than the \d+ tokens of the model’s context, since the prompt needs room in it too\s+received {2}512\n/,
    );
    const inEval = await ratchet('check', 'in-eval.toml');
    assert.equal(inEval.code, 2);
    assert.match(inEval.stdout + inEval.stderr, /in-eval\.toml:\d+[^]*eval\.sampling\.max_tokens[^]*received {2}200\n/);
    assert.equal((await ratchet('check', 'shared.toml')).code, 0);
  });

  test('says what the policy server may have in memory, and refuses too little with what would do', async (t) => {
    const bound = (gb: number): string => `${words}[inference]\nmemory_gb = ${gb}\n`;
    const served = `${words}[inference]\nkind = "openai"\nurl = "http://127.0.0.1:9/v1"\nmemory_gb = 1\n`;
    const files = { 'usual.toml': words, 'bound.toml': bound(0.5), 'little.toml': bound(0.05), 'served.toml': served };
    const { folder, ratchet } = await project(t, files);
    const usual = await ratchet('check', 'usual.toml');
    assert.match(usual.stdout, /^ {8,}.*the policy server takes at most \d\.\d GiB \(\[inference\] memory_gb = \d/m);
    const { stdout } = await ratchet('check', 'bound.toml');
    assert.match(stdout, /the policy server takes at most 0\.5 GiB \(\[inference\] memory_gb = 0\.5\)/);
    const little = await ratchet('check', 'little.toml');
    const said = little.stdout + little.stderr;
    assert.equal(little.code, 2, said);
    assert.match(said, /little\.toml:8.*inference\.memory_gb\n +expected +at least 0\.\d: one version of the model/);
    assert.match(said, /received +0\.05/);
    const least = /at least (0\.\d)/.exec(said)![1];
    await writeFile(path.join(folder, 'little.toml'), bound(Number(least)));
    assert.equal((await ratchet('check', 'little.toml')).code, 0, 'what is said to do does');
    const elsewhere = await ratchet('check', 'served.toml');
    assert.match(
      elsewhere.stdout + elsewhere.stderr,
      /inference\.memory_gb\n +expected +kind = "embedded" beside it: no other inference has/,
    );
  });

  test('says who teaches and who is told of the metrics, and what would have no effect', async (t) => {
    const more = `loss = "opd"
rollouts_per_example = 2
${words}[teacher]
demonstration = "answer"
[trainer.advantage]
turns = "returns"
[wandb]
[mlflow]
`;
    const wrong = more.replace('"answer"', '"solution"');
    const client = `${words}agent = { client = { base_url = "http://127.0.0.1:9/v1" } }\n`;
    const { ratchet } = await project(t, { 'more.toml': more, 'wrong.toml': wrong, 'client.toml': client });
    const { code, stdout } = await ratchet('check', 'more.toml');
    assert.equal(code, 0, stdout);
    assert.match(stdout, /^ {2}teacher {7}the policy itself, told the "answer" of an example; scores what/m);
    assert.match(stdout, /^ {2}metrics {7}to W&B, project ratchet and MLflow, run more$/m);
    assert.match(stdout, /^warning: trainer\.advantage\.turns has no effect on reverse-text/m);
    assert.match(stdout, /^warning: no metrics would go to MLflow: .*got nothing\. Start one/m);
    const [untold, pinned] = [await ratchet('check', 'wrong.toml'), await ratchet('check', 'client.toml')];
    assert.match(
      untold.stdout + untold.stderr,
      /teacher\.demonstration\n +expected .* those of reverse-text have answer/,
    );
    assert.match(
      pinned.stdout + pinned.stderr,
      /env\[0\]\.agent\.client\n +expected +nothing: this agent is the policy/,
    );
    assert.deepEqual([untold.code, pinned.code], [2, 2]);
  });

  test('hours of a step are known and in the way before the model is downloaded, with all turns', async (t) => {
    const big = `model = "Qwen/Qwen3-4B"\nmax_steps = 5\nbatch_size = 128\nrollouts_per_example = 8\n[sampling]\nmax_tokens = 512\n`;
    const files = {
      'single.toml': `${big}[[env]]\nid = "reverse-text"\n`,
      'turns.toml': `${big}[[env]]\nid = "wiki-search"\nargs = { max_turns = 10 }\n`,
      'named.toml': `${big.replace('Qwen/Qwen3-4B', 'owner/new-7b-instruct')}[[env]]\nid = "reverse-text"\n`,
    };
    const { folder, ratchet } = await project(t, files);
    const hours = async (file: string): Promise<string> => {
      const { code, stdout } = await ratchet('check', file);
      assert.equal(code, 1, stdout);
      return /^ {2}machine: training and sampling .* a step may take about (\d+ \w+), .*\n {4}→ to train all the same: npx ratchet-rl train \w+\.toml --yes$/m.exec(stdout)![1]!; // prettier-ignore
    };
    assert.deepEqual(
      [await hours('single.toml'), await hours('turns.toml'), await hours('named.toml')],
      ['15 hours', '6 days', '25 hours'],
    );
    // The same where the model is here, as far as its size goes: nothing is begun.
    const { code, stderr } = await ratchet('train', 'single.toml', '--plain');
    assert.equal(code, 2, stderr);
    assert.deepEqual((await readdir(folder)).sort(), ['named.toml', 'single.toml', 'turns.toml']);
  });

  test('what a GPU needs and is not here is in the way, in the words of doctor and of train', async (t) => {
    const { ratchet } = await project(t, { 'words.toml': words });
    const [checked, doctored, trained] = [
      await ratchet('check', 'words.toml', '--trainer.provider', 'cuda'),
      await ratchet('doctor', 'words.toml', '--trainer.provider', 'cuda'),
      await ratchet('train', 'words.toml', '--trainer.provider', 'cuda', '--plain'),
    ];
    if (!/✗ CUDA provider/.test(doctored.stdout)) return t.skip('this machine has a GPU and its libraries');
    assert.deepEqual([checked.code, doctored.code, trained.code], [1, 1, 2]);
    const fix = /it is downloaded by: (ONNXRUNTIME_NODE_INSTALL=cuda12 node \S+);/.exec(doctored.stdout)![1]!;
    for (const said of [checked.stdout, trained.stderr]) {
      assert.match(said, /in the way of training here:\n/);
      assert.match(said, /machine: CUDA provider: onnxruntime-node has no libonnxruntime_providers_cuda\.so/);
      assert.ok(said.includes(fix), said);
    }
  });

  test('a longer context than the model has is warned of: vLLM would not start', async (t) => {
    const vllm = (tokens: number) => `${words}[inference.vllm]\nmax_model_len = ${tokens}\n`;
    const { ratchet } = await project(t, { 'fits.toml': vllm(64), 'long.toml': vllm(100_000) });
    const { stdout } = await ratchet('check', 'fits.toml', 'long.toml');
    assert.equal([...stdout.matchAll(/max_model_len \(/g)].length, 1, stdout);
    assert.match(stdout, /^warning: max_model_len \(100000\) is more than the \d+ tokens of the model’s context/m);
  });

  test('a vLLM that runs and cannot take the run’s weights is wrong, too', async (t) => {
    const { folder, ratchet } = await project(t, {});
    const model = path.join(folder, 'model');
    await saveModelFolder(createPreset('preset:reverse-text-vllm-0.2m', { seed: 0 }), model);
    const server = await startVllmStandIn({ model, servedName: 'base', takesAdapters: false });
    t.after(() => server.close());
    const run = words.replace('0.2m"', 'vllm-0.2m"');
    await writeFile(
      path.join(folder, 'run.toml'),
      `${run}[inference]\nkind = "vllm"\nurl = "${server.url}"\n[lora]\nr = 4\n`,
    );
    const { code, stdout } = await ratchet('check', 'run.toml');
    assert.match(stdout, /takes no adapters[\s\S]*→ the run trains adapters: start vLLM with --enable-lora/);
    assert.equal(code, 2);
  });

  test('several files: all that is wrong with each, and exit code 2', async (t) => {
    const { ratchet } = await project(t, {
      'good.toml': words,
      'bad.toml': words.replace('batch_size = 64', 'batch_size = 30\nlearning_rat = 1'),
      'broken.toml': 'model = ',
    });
    const { code, stdout, stderr } = await ratchet('check', 'good.toml', 'bad.toml', 'broken.toml', 'gone.toml');
    assert.deepEqual([code, stderr], [2, '']);
    assert.match(stdout, /good\.toml is a run/);
    assert.match(
      stdout,
      /bad\.toml:2:1 {2}batch_size\n.*multiple[^]*bad\.toml:3:1 {2}learning_rat\n[^]*did you mean "learning_rate"\?/,
    );
    assert.match(stdout, /broken\.toml:1:\d+\n {4}expected {2}valid TOML/);
    assert.match(stdout, /gone\.toml\n[^]*there is no such file/);
  });

  test('files that a config names, its model and its arguments are all said in one go', async (t) => {
    const { ratchet } = await project(t, {
      'bad.toml': `${words.replace('0.2m', '0.3m')}args = { length = 3 }\n[trainer.loss]\ntype = "custom"\nimport = "./gone.js"\n`,
    });
    const { code, stdout } = await ratchet('check', 'bad.toml');
    assert.equal(code, 2);
    const places = [...stdout.matchAll(/^bad\.toml:(\d+):\d+ {2}(\S+)$/gm)].map(([, line, key]) => [Number(line), key]);
    assert.deepEqual(places, [
      [1, 'model'],
      [7, 'env[0].args'],
      [10, 'trainer.loss.import'],
    ]);
  });

  test('a model and an environment that are not here keep it from nothing else', async (t) => {
    const { ratchet } = await project(t, { 'hub.toml': onTheHub.replace('batch_size = 64', 'batch_size = 16') });
    const { code, stdout } = await ratchet('check', 'hub.toml', '--dialect', 'ratchet');
    assert.equal(code, 1, 'the file is right, and cannot be trained here yet');
    assert.match(stdout, /^hub\.toml is a run named hub, read as Ratchet \(--dialect\):$/m);
    const obstacles = /in the way of training here:\n([^]*?)(?=\n\S)/.exec(stdout)?.[1] ?? '';
    assert.match(
      obstacles,
      /model: Qwen\/Qwen3-8B is a name on the Hugging Face Hub \(qwen3-8b, 8\.19 billion parameters, 15\.3 GiB in bfloat16\)[^]*model get Qwen\/Qwen3-8B/,
    );
    assert.match(obstacles, /environment: .*"my-env"[^]*ratchet-rl env install/);
    assert.match(
      stdout,
      /advice \(rules of thumb, no errors\):[^]*hub\.toml:2:1 {2}batch_size = 16: usually at least 64/,
    );
  });

  test('and training is refused before anything starts', async (t) => {
    const { ratchet, folder } = await project(t, { 'hub.toml': onTheHub.replace('"my-env"', '"reverse-text"') });
    const { code, stdout, stderr } = await ratchet('train', 'hub.toml', '--plain');
    assert.notEqual(code, 0);
    assert.match(
      `${stdout}${stderr}`,
      /Qwen\/Qwen3-8B is neither a folder here nor in .*ratchet-rl model get Qwen\/Qwen3-8B/s,
    );
    assert.deepEqual(await readdir(folder), ['hub.toml']);
  });

  test('all that is in the way of training is said at once by train, too', async (t) => {
    const { ratchet, folder } = await project(t, { 'hub.toml': onTheHub });
    const { code, stderr } = await ratchet('train', 'hub.toml', '--plain');
    assert.equal(code, 2);
    assert.match(
      stderr,
      /^hub\.toml: in the way of training here:\n {2}model: [^]*model get[^]*\n {2}environment: "my-env"/,
    );
    assert.deepEqual(await readdir(folder), ['hub.toml']);
  });

  test('--json: the same for programs', async (t) => {
    const { ratchet } = await project(t, { 'good.toml': words, 'bad.toml': `learning_rat = 1\n${words}` });
    const { code, stdout } = await ratchet('check', 'good.toml', 'bad.toml', '--json');
    assert.equal(code, 2);
    const { ok, files } = JSON.parse(stdout) as { ok: boolean; files: Record<string, unknown>[] };
    assert.deepEqual([ok, files.map((file) => file['ok'])], [false, [true, false]]);
    const [good, bad] = files;
    assert.equal(RunSpec.parse(good!['spec']).name, 'good');
    const [problem] = bad!['problems'] as Record<string, unknown>[];
    const { file, line, column, path: key, received } = problem!;
    assert.deepEqual([file, line, column, key, received], ['bad.toml', 1, 1, 'learning_rat', 'an unknown key']);
  });

  test('settings on the command line come after the files', async (t) => {
    const { ratchet } = await project(t, { 'words.toml': words });
    const { code, stdout } = await ratchet('check', 'words.toml', '--batch-size', '12');
    assert.equal(code, 2);
    assert.match(stdout, /^command line {2}batch_size$/m);
  });
});

describe('ratchet train --dry-run', () => {
  test('says first what the run would take, where to read every setting, and starts nothing', async (t) => {
    const { ratchet, folder } = await project(t, { 'words.toml': words });
    const { code, stdout } = await ratchet('train', 'words.toml', '--dry-run', '--max-steps', '5');
    assert.equal(code, 0);
    const [before = '', rest = ''] = stdout.split('plan (nothing was started):\n');
    assert.equal(before, '');
    assert.match(rest, /^ {2}steps +5, /m);
    assert.match(rest, /the same command with --json\n$/);
    assert.ok(!rest.includes('"learningRate"'));
    for (const line of ['workers', 'steps', 'rollouts', 'tokens', 'disk', 'memory']) assert.match(rest, new RegExp(`^  ${line} `, 'm')); // prettier-ignore
    assert.deepEqual(await readdir(folder), ['words.toml']);
  });

  test('--json prints the resolved run alone', async (t) => {
    const { ratchet } = await project(t, { 'words.toml': words });
    const { stdout } = await ratchet('train', 'words.toml', '--dry-run', '--json', '--name', 'mine');
    assert.equal(RunSpec.parse(JSON.parse(stdout)).name, 'mine');
  });

  test('of a model on the Hub its size is told; one that nobody knows wants its config', async (t) => {
    const { ratchet } = await project(t, {
      'large.toml': onTheHub.replace('Qwen3-8B', 'Qwen3-32B'),
      'unknown.toml': onTheHub.replace('Qwen/Qwen3-8B', 'acme/secret-9b'),
      'config.json': '{ "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128 }', // prettier-ignore
    });
    const large = (await ratchet('train', 'large.toml', '--dry-run')).stdout;
    assert.match(large, /memory {8}qwen3-32b, 32\.76 billion parameters, 61\.0 GiB in bfloat16/);
    assert.match((await ratchet('train', 'unknown.toml', '--dry-run')).stdout, /unknown model .*--model-config FILE/);
    const given = (await ratchet('train', 'unknown.toml', '--dry-run', '--model-config', 'config.json')).stdout;
    assert.match(given, /memory {8}config\.json, \d+ parameters/);
  });

  test('what is wrong is refused as ever', async (t) => {
    const { ratchet } = await project(t, { 'bad.toml': `learning_rat = 1\n${words}` });
    const { code, stderr } = await ratchet('train', 'bad.toml', '--dry-run');
    assert.equal(code, 2);
    assert.match(stderr, /bad\.toml:1:1 {2}learning_rat/);
  });
});

describe('files of other kinds and files that are laid over one another', () => {
  test('train says what a file is for that is no run, and doctor and baseline take @ and --dialect as train does', async (t) => {
    const { ratchet } = await project(t, {
      'words.toml': words,
      'over.toml': 'max_steps = 7\n',
      'eval.toml': 'model = "m"\n[[eval]]\nid = "reverse-text"\n',
    });
    const trained = await ratchet('train', 'eval.toml', '--dry-run');
    assert.equal(trained.code, 2);
    assert.match(trained.stderr, /eval\.toml: expected a run file, got evaluations .* because of \[\[eval\]\]/);
    const examined = await ratchet('doctor', 'words.toml', '@', 'over.toml', '--dialect', 'ratchet');
    assert.match(examined.stdout, /words\.toml: words, 7 steps/);
    const measured = await ratchet('baseline', 'words.toml', '@', 'missing.toml', '--dialect', 'ratchet');
    assert.equal(measured.code, 2);
    assert.match(measured.stderr, /missing\.toml\n {4}expected {2}a TOML file/);
  });

  test('a run may be given as the files of its tables alone, as prime-rl’s are', async (t) => {
    const model = '[model]\nname = "preset:reverse-text-0.2m"\n';
    const { ratchet } = await project(t, {
      't.toml': `[optim]\nlr = 2e-5\n${model}`,
      'o.toml': `batch_size = 64\nrollouts_per_example = 8\n${model}[sampling]\nmax_tokens = 10\n[[env]]\nid = "reverse-text"\n`,
    });
    const tables = ['--trainer', '@', 't.toml', '--orchestrator', '@', 'o.toml'];
    const { stdout, code } = await ratchet('check', ...tables);
    assert.equal(code, 0, stdout);
    assert.match(stdout, /t\.toml is a run named t, read as prime-rl 0\.5\.0/);
    const planned = await ratchet('rl', ...tables, '--dry-run', '--json');
    assert.match(planned.stdout, /"learningRate": 0\.00002/);
    const wrong = await ratchet('check', ...tables, '--orchestrator.batch_size', '30');
    assert.match(wrong.stdout, /orchestrator\.batch_size\n {4}expected {2}a multiple of rollouts_per_example \(8\)/);
  });

  test('a remedy names the key of the model as the file’s dialect does', async (t) => {
    const run =
      '[model]\nname = "PrimeIntellect/INTELLECT-3"\n[orchestrator]\nrollouts_per_example = 8\n[[orchestrator.env]]\nid = "a"\n';
    const { ratchet } = await project(t, { 'run.toml': run });
    const { stdout } = await ratchet('check', 'run.toml');
    assert.match(stdout, /the engine computes neither[^]*name a smaller model: model\.name = /);
    const named = await ratchet('check', 'run.toml', '--model.name', 'models/m');
    assert.equal(named.code, 1, 'the file is right, and neither model nor environment is here');
  });
});
