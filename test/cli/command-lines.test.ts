/** Every command line of the documents, with `ratchet` in place of `uv run` and `prime`. None of them starts anything here. */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { RunSpec } from '../../config/run-spec.ts';
import { configsFolder } from '../config/run-files.ts';
import { openCommands, type Printed } from './typed.ts';

const type = openCommands();

let folder: string;
let there: string[];

before(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'command-lines-'));
  mkdirSync(path.join(folder, 'configs/prime-rl'), { recursive: true });
  mkdirSync(path.join(folder, 'configs/vf-rl'));
  const copies = {
    'seeds/prime-rl.toml': 'configs/prime-rl/my-config.toml',
    'seeds/flat-wiki-search.toml': 'configs/prime-rl/wiki-search.toml',
    'seeds/vf-rl-wiki-search.toml': 'configs/vf-rl/wiki-search.toml',
  };
  for (const [from, to] of Object.entries(copies)) cpSync(path.join(configsFolder, from), path.join(folder, to));
  cpSync(path.join(configsFolder, 'seeds/flat-wiki-search.toml'), path.join(folder, 'wiki-search.toml'));
  const withGpus = readFileSync(path.join(configsFolder, 'seeds/prime-rl.toml'), 'utf8');
  writeFileSync(path.join(folder, 'gpus.toml'), withGpus.replaceAll(/^\w+_gpu_ids.*$/gm, ''));
  writeFileSync(path.join(folder, 'mine.toml'), 'max_steps = 7\n');
  writeFileSync(path.join(folder, 't.toml'), '[optim]\nlr = 2e-5\n');
  there = readdirSync(folder, { recursive: true, encoding: 'utf8' }).toSorted();
});
after(() => rmSync(folder, { recursive: true, force: true }));

function typed(line: string, variables: Record<string, string> = {}): Promise<Printed> {
  return type(folder, line.split(' '), variables);
}

describe('a command line that trains', () => {
  const lines: Readonly<Record<string, (spec: RunSpec) => unknown>> = {
    'rl @ configs/prime-rl/my-config.toml': ({ name, batchSize }) => [name, batchSize],
    'rl @ configs/prime-rl/my-config.toml --trainer.ckpt.resume-step 50': ({ maxSteps }) => maxSteps,
    'rl @ configs/prime-rl/my-config.toml --wandb.project p --wandb.name n': ({ wandb }) => [
      wandb?.project,
      wandb?.name,
    ],
    'rl @ configs/prime-rl/my-config.toml @ mine.toml --trainer @ t.toml --trainer.optim.weight-decay 0.1 --no-wandb --ckpt':
      (spec) => [spec.maxSteps, spec.learningRate, spec.optimizer.weightDecay, spec.wandb, spec.checkpoints.interval],
    'rl @ configs/prime-rl/my-config.toml --resume': ({ maxSteps }) => maxSteps,
    'prime-rl @ configs/prime-rl/wiki-search.toml': ({ rolloutsPerExample }) => rolloutsPerExample,
    'prime-rl configs/prime-rl/wiki-search.toml': ({ rolloutsPerExample }) => rolloutsPerExample,
    'vf-rl @ configs/vf-rl/wiki-search.toml': ({ batchSize }) => batchSize,
    'train configs/prime-rl/wiki-search.toml --dialect flat': ({ learningRate }) => learningRate,
    'train configs/prime-rl/wiki-search.toml': ({ learningRate }) => learningRate,
    'prime-rl wiki-search.toml': ({ learningRate, lora }) => [learningRate, lora],
    'uv run rl @ configs/prime-rl/my-config.toml --inference-gpu-ids 0,1 --orchestrator.sampling.top-p 0.9': (spec) => [
      spec.requested?.inferenceGpus,
      spec.sampling.topP,
    ],
    'rl @ gpus.toml --trainer-gpus 2 --inference-gpus 6': ({ requested }) => [
      requested?.trainerGpus,
      requested?.inferenceGpus,
    ],
  };
  const meant: readonly unknown[] = [
    ['my-config', 32],
    500,
    ['p', 'n'],
    [7, 2e-5, 0.1, null, 7],
    500,
    8,
    8,
    1024,
    1e-6,
    1e-6,
    [1e-6, null],
    [2, 0.9],
    [2, 6],
  ];
  for (const [i, [line, look]] of Object.entries(lines).entries()) {
    test(`ratchet ${line} --dry-run prints the run, and starts nothing`, async () => {
      const { code, out, err } = await typed(`${line} --dry-run --json`);
      assert.equal(code, 0, err);
      assert.deepEqual(look(RunSpec.parse(JSON.parse(out))), meant[i]);
      assert.deepEqual(readdirSync(folder, { recursive: true, encoding: 'utf8' }).toSorted(), there);
    });
  }

  test('is refused where it is one of several launches, each of which would be a run of its own', async () => {
    const launch = { MASTER_ADDR: 'node0', MASTER_PORT: '29500', WORLD_SIZE: '4' };
    const first = await typed('prime-rl configs/prime-rl/wiki-search.toml', { ...launch, RANK: '0' });
    assert.equal(first.code, 2);
    assert.match(first.err, /env -u WORLD_SIZE -u RANK npx ratchet-rl train configs\/prime-rl\/wiki-search\.toml/);
    const third = await typed('prime-rl configs/prime-rl/wiki-search.toml', { ...launch, RANK: '2' });
    assert.equal(third.code, 2);
    assert.match(third.err, /TEMPORAL_ADDRESS=node0:7233 npx ratchet-rl worker --role rollout/);
  });

  test('joins the first node of a trainer where PyTorch trains, and starts no run', async () => {
    const run =
      'model = "models/m"\n[[env]]\nid = "reverse-text"\n[trainer]\nkind = "torch"\n[inference]\nkind = "vllm"\n';
    writeFileSync(path.join(folder, 'torch.toml'), run);
    const launch = { MASTER_ADDR: 'node0', WORLD_SIZE: '2', RANK: '1' };
    const second = await typed('train torch.toml --builtin', launch);
    assert.equal(second.code, 2);
    assert.match(second.err, /A node of a trainer shows the first one the secret of its project folder\./);
    const nowhere = await typed('worker --role trainer-node', { RANK: '1' });
    assert.match(nowhere.err, /expected MASTER_ADDR .* got MASTER_ADDR= RANK=1/);
  });

  test('finds in configs/rl what older documents have in configs/lab', async (t) => {
    mkdirSync(path.join(folder, 'configs/rl'), { recursive: true });
    t.after(() => rmSync(path.join(folder, 'configs/rl'), { recursive: true }));
    writeFileSync(path.join(folder, 'configs/rl/gsm8k.toml'), 'max_steps = 7\n');
    const { code, err } = await typed('train configs/lab/gsm8k.toml --builtin');
    assert.equal(code, 2);
    assert.match(err, /did you mean configs\/rl\/gsm8k\.toml\?/);
  });

  test('names the file in which something is wrong', async () => {
    writeFileSync(path.join(folder, 't.toml'), '[optim]\nlr = 2e-5\nlearning = 1\n');
    const { code, err } = await typed('rl @ configs/prime-rl/my-config.toml --trainer @ t.toml --dry-run');
    assert.equal(code, 2);
    assert.match(err, /t\.toml:3:1 {2}trainer\.optim\.learning/);
    writeFileSync(path.join(folder, 't.toml'), '[optim]\nlr = 2e-5\n');
  });
});

test("prime's gepa run, typed as it is, says what it would do and what it may cost", async () => {
  const models = '--model m --reflection-model n -b http://127.0.0.1:9/v1 --state-columns tool_calls reasoning_trace';
  const { code, out, err } = await typed(`gepa run wiki-search --max-calls 300 ${models} --dry-run`);
  assert.equal(code, 0, err);
  assert.match(
    out,
    /wiki-search: the prompt of m .* reflected on by n[^]*at most 300 rollouts and 300 reflections; 100 examples to reflect on, 50 to choose by/,
  );
  const bounded = await typed(`gepa run wiki-search --max-calls 300 --max-reflections 40 --eval ${models} --dry-run`);
  assert.match(bounded.out, /at most 300 rollouts and 40 reflections, and 2 × 50 rollouts to compare;/);
  const small = await typed(`gepa run wiki-search --max-calls 9 ${models} --dry-run`);
  assert.equal(small.code, 2);
  assert.match(small.err, /A budget of 9 calls tries next to nothing: 50 .* \+ 3 × \(3 .* \+ 50 .*\) = 209\./);
  assert.equal((await typed(`gepa run wiki-search --max-calls 9 ${models} --dry-run --yes`)).code, 0);
});

test('an evaluation under another system prompt says it, from a file or as it is typed', async () => {
  const model = '-m m -b http://127.0.0.1:9/v1 --dry-run';
  writeFileSync(path.join(folder, 'best_prompt.txt'), 'Be brief.\nAlways.');
  const read = await typed(`eval run wiki-search ${model} --system-prompt best_prompt.txt`);
  assert.equal(read.code, 0, read.err);
  assert.match(read.out, /system_prompt "Be brief\.\\nAlways\."/);
  const missing = await typed(`eval run wiki-search ${model} --system-prompt best.txt`);
  assert.equal(missing.code, 2);
  assert.match(
    missing.err,
    /wiki-search: system_prompt: expected a system prompt .* got there is no such file: .*best\.txt/,
  );
});

test("where gepa's -p names a provider, that is asked", async () => {
  const { code, out, err } = await typed('prime gepa run wiki-search -p openai --dry-run');
  assert.equal(code, 0, err);
  assert.match(out, /https:\/\/api\.openai\.com\/v1/);
});

test('ratchet eval run reverse-text -m gpt-5-nano -p openai -n 20 --dry-run', async () => {
  const { code, out, err } = await typed('eval run reverse-text -m gpt-5-nano -p openai -n 20 --dry-run');
  assert.equal(code, 0, err);
  assert.match(out, /20 examples × 3 rollouts, 32 at once/);
  assert.match(out, /https:\/\/api\.openai\.com\/v1 \(key: OPENAI_API_KEY\)/);
});

describe('a command line that evaluates is read as it is, and refused for what is not here', () => {
  const lines: readonly (readonly [line: string, refused: RegExp])[] = [
    ['eval run vf-musique -m Qwen/Qwen2.5-7B-Instruct -b http://0.0.0.0:8007/v1', /vf-musique/],
    ['eval run vf-musique -m gpt-5-nano', /vf-musique/],
    [
      'eval --client.base-url http://localhost:8007/v1 --weights-dir outputs/weights --env.id my-env',
      /--weights-dir outputs\/weights: expected a folder with step_N\/ in it; there is no such folder\.$/m,
    ],
    [
      'eval --weights-dir outputs/weights --steps 10,50,100 --no-eval-base',
      /--weights-dir outputs\/weights: expected a folder with step_N\/ in it/,
    ],
  ];
  for (const [line, refused] of lines) {
    test(`ratchet ${line}`, async () => {
      const { code, out, err } = await typed(`${line} --dry-run`);
      assert.equal(out, '');
      assert.notEqual(code, 0);
      assert.match(err, refused);
      assert.doesNotMatch(err, /unknown option|\n\s+at /);
    });
  }
});

test('prime-rl’s folder of weights is said to be one of each run, where there are runs', async (t) => {
  t.after(() => rmSync(path.join(folder, 'outputs'), { recursive: true }));
  mkdirSync(path.join(folder, 'outputs/mine/weights/step_10'), { recursive: true });
  mkdirSync(path.join(folder, 'outputs/evals'));
  const line = 'eval --client.base-url http://localhost:8007/v1 --env.id my-env --weights-dir';
  writeFileSync(path.join(folder, 'outputs/mine/run.json'), '{}');
  assert.match(
    (await typed(`${line} outputs/weights`)).err,
    /Each run has a folder of its own: --weights-dir outputs\/mine\/weights\.$/m,
  );
  rmSync(path.join(folder, 'outputs/mine/run.json'));
  const alone = await typed('eval --weights-dir outputs/mine/weights');
  assert.match(alone.err, /not the weights folder of a run of Ratchet: --client\.base-url names the server/);
});

describe('a command line that makes a place to work in', () => {
  for (const [line, first] of [
    ['lab setup', 'configs/rl/'],
    ['lab setup --prime-rl', 'configs/prime-rl/'],
    ['lab setup --vf-rl', 'configs/vf-rl/'],
  ] as const) {
    test(`ratchet ${line} writes examples there, and leaves what is there as it was`, async () => {
      const { code, out, err } = await typed(line);
      assert.equal(code, 0, err);
      assert.match(out, new RegExp(`wrote +${first}`));
    });
  }

  test('ratchet env install my-env says where a folder for it would be', async () => {
    const { code, out } = await typed('env install my-env');
    assert.equal(code, 1);
    assert.match(out, /no folder environments\/my_env/);
  });
});

describe('a command line that is no command', () => {
  const lines = ['frobnicate', 'runs words', 'rl', 'rewind words', 'worker', 'worker --role none'];
  for (const line of [...lines, 'eval compare words', 'config']) {
    test(`ratchet ${line} ends with exit code 2`, async () => {
      const { code, err } = await typed(line);
      assert.equal(code, 2, err);
    });
  }

  const hints = {
    frobnicate: '(npx ratchet-rl --help lists the commands)',
    'eval compare': '(npx ratchet-rl eval compare --help says how)',
  };
  for (const [line, hint] of Object.entries(hints)) {
    test(`ratchet ${line} is answered with a line that can be typed`, async () => {
      assert.equal((await typed(line)).err.trim().split('\n').at(-1), hint);
    });
  }
});
