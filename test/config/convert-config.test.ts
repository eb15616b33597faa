import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { z } from 'zod';
import { convertConfig, type ConvertOptions } from '../../config/convert-config.ts';
import { becomes, converted, type Dialect, ignored, together } from '../../config/dialects/dialect.ts';
import { dialectNamed } from '../../config/dialects/index.ts';
import { ratchet } from '../../config/dialects/ratchet-dialect.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { parseToml } from '../../config/toml/parse-toml.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { environmentId, flag, positive, text, whole } from '../../config/toml/values.ts';

/** A small system with other words, other defaults, a renamed table and a value that is written in another way. */
const other: Dialect = {
  name: 'other',
  title: 'Another system',
  fields: {
    'policy.name': becomes('model', text(), { isRequired: true }),
    'policy.rank': becomes('lora.r', whole(1)),
    steps: becomes('max_steps', whole(1)),
    'groups.size': becomes('rollouts_per_example', whole(2)),
    batch_size: together('`batch_size`', whole(2)),
    async: converted('max_async_level', flag(), (isAsync) => (isAsync ? 1 : 0)),
    'tasks[].id': becomes('env[].id', environmentId()),
    'tasks[].share': becomes('env[].weight', positive()),
    'tasks[].args': becomes('env[].args', z.record(z.string(), z.json())),
    'sampling.temperature': becomes('sampling.temperature', positive()),
    color: ignored('nothing is drawn', text()),
  },
  defaults: { max_steps: 7, sampling: { temperature: 0.5 } },
  together: (written, own) => {
    const size = written['batch_size'];
    if (size !== undefined) own.set(['batch_size'], size, ['batch_size']);
  },
};

function convert(text: string, { file, ...options }: ConvertOptions & { readonly file: string }) {
  return convertConfig(parseToml(text, file), options);
}

function meaning(toml: string, dialect: Dialect): unknown {
  const parsed = parseRunConfig(toml, { file: 'run.toml', dialect });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
}

const run = `
model = "a/b"
max_steps = 30
batch_size = 64
rollouts_per_example = 16

[lora]
r = 4

[[env]]
id = "owner/one"
weight = 2
[env.args]
level = 3

[[env]]
id = "two"
`;

test('a run in other words means the same when it is read again, and is no longer than it must be', () => {
  const result = convert(run, { file: 'run.toml', from: 'ratchet', to: other });
  assert(result.ok, JSON.stringify(result));
  assert.deepEqual(meaning(result.toml, other), meaning(run, ratchet));
  assert.equal(
    result.toml,
    `# run.toml (Ratchet) in the words of Another system.

steps = 30
batch_size = 64

[policy]
name = "a/b"
rank = 4

[groups]
size = 16

[[tasks]]
id = "owner/one"
share = 2

[tasks.args]
level = 3

[[tasks]]
id = "two"

[sampling]
temperature = 1
`,
  );
});

test('what the other system cannot say is listed, and nothing is written', () => {
  const more = run.replace(
    '[lora]',
    'max_async_level = 0\n[trainer]\nbeta2 = 0.98\n[difficulty_filter]\nmin_reward = 0.1\n[lora]',
  );
  const result = convert(more, { file: 'run.toml', from: 'ratchet', to: other });
  assert(result.ok === false);
  assert.deepEqual(result.lost, [
    'trainer.beta2: 0.98 here, 0.999 there',
    'difficulty_filter.min_reward: 0.1 here, no bound there',
    'max_async_level: 0 here, 1 there',
  ]);
});

test('a setting that is ours alone is never dropped in silence', () => {
  const result = convert(`builtin = true\n${run}`, { file: 'run.toml', from: 'ratchet', to: other });
  assert(result.ok === false);
  assert.deepEqual(result.lost, ['builtin: true here, unknown there']);
});

const configs = new URL('../../configs/rl/', import.meta.url);
for (const name of readdirSync(configs).filter((name) => name.endsWith('.toml'))) {
  test(`configs/rl/${name} in our own words is itself, and is read as ours without being told`, () => {
    const source = readFileSync(new URL(name, configs), 'utf8');
    const result = convert(source, { file: name, to: ratchet });
    assert(result.ok);
    const again = parseRunConfig(result.toml, { file: name });
    assert(again.ok);
    assert.equal(again.readAs.dialect, 'ratchet');
    assert.deepEqual(
      again.spec,
      meaning(source, ratchet) && { ...(meaning(source, ratchet) as object), name: again.spec.name },
    );
  });
}

test('a file that is wrong is not converted', () => {
  const refused = convert('model = 1', { file: 'run.toml', to: other });
  assert(refused.ok === null && refused.problems.length > 0);
});

test('a run with arguments of a server is read as ours after it was written in our words', () => {
  for (const [name, from] of [
    ['prime-rl', 'prime-rl-0.4'],
    ['vf-rl-wiki-search', 'vf-rl'],
  ] as const) {
    const seed = readFileSync(new URL(`../data/configs/seeds/${name}.toml`, import.meta.url), 'utf8');
    const result = convert(seed, { file: 'run.toml', from, to: ratchet });
    assert(result.ok, JSON.stringify(result));
    const [there, here] = [
      parseRunConfig(result.toml, { file: 'run.toml' }),
      parseRunConfig(seed, { file: 'run.toml', dialect: from }),
    ];
    assert(there.ok && here.ok, JSON.stringify(there));
    assert.equal(there.readAs.dialect, 'ratchet');
    assert.deepEqual(there.spec, here.spec);
  }
});

test('a run of Hosted Training is written as prime-rl of its time reads it; what defaults bring is said, and what today’s has no more', () => {
  const seed = readFileSync(new URL('../data/configs/seeds/hosted-alphabet-sort.toml', import.meta.url), 'utf8');
  const result = convert(seed, { file: 'run.toml', from: 'hosted', to: dialectNamed('prime-rl-0.9') });
  assert(result.ok, JSON.stringify(result));
  const today = convert(seed, { file: 'run.toml', from: 'hosted', to: dialectNamed('prime-rl') });
  assert.ok(
    !today.ok && 'lost' in today && today.lost.includes('trainer.loss.type: "dppo" here, "ipo" there'),
    JSON.stringify(today),
  );
  assert.match(result.toml, /\[monitors\.wandb\]\nproject = "alphabet-sort"/);
  assert.match(result.toml, /max_completion_tokens = 512/);
  assert.ok(
    result.warnings.includes('seq_len = 2048 comes with prime-rl 0.9.0: its default'),
    result.warnings.join('\n'),
  );
  const [here, there] = [
    meaning(seed, dialectNamed('hosted')),
    meaning(result.toml, dialectNamed('prime-rl-0.9')),
  ] as RunSpec[];
  assert.ok(result.warnings.includes('trainer.ac_freq = 1 comes with prime-rl 0.9.0: its default'));
  assert.ok(result.warnings.includes('trainer.optim_cpu_offload = true comes with prime-rl 0.9.0: its default'));
  assert.deepEqual(
    { ...there, requested: null, seqLen: null },
    { ...here, trainer: { ...here!.trainer, acFreq: 1 }, requested: null },
  );
});
