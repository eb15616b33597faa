import { configText } from '../activities/runs.ts';
import { runFiles, spoiled } from '../config/run-files.ts';
import type { Random } from './damages.ts';

/** A trainer's module is imported by the worker only: `check` takes it for right. */
const throwingTrainer = `${configText}\n[trainer]\nkind = "module"\nimport = "./throws.ts"`;

/** Run files that were found to go wrong once. */
const known: readonly string[] = [
  '',
  '\u0000',
  '\ufeff',
  'null',
  '[]',
  '[['.repeat(20_000),
  `${'a.'.repeat(5_000)}b = 1`,
  `x = ${'['.repeat(20_000)}${']'.repeat(20_000)}`,
  `x = ${'{a='.repeat(5_000)}1${'}'.repeat(5_000)}`,
  Array.from({ length: 5_000 }, (_, i) => `unknown_${i} = ${i}`).join('\n'),
  `${'long'.repeat(50_000)} = 1`,
  `model = "${'x'.repeat(200_000)}"`,
  'model = "\\u001b[2J\\u202eevil"',
  '"\\u001b[2J\\u202e" = 1',
  'model = 1e999',
  'model = nan',
  'max_steps = -9223372036854775808',
  'max_steps = 99999999999999999999999',
  'batch_size = 1979-05-27T07:32:00Z',
  '__proto__ = { x = 1 }',
  'constructor = { prototype = { x = 1 } }',
  `${configText}\n[[env]]\nid = "../../../etc/passwd"`,
  configText.replace('id = "reverse-text"', 'id = "/dev/zero"'),
  withEnvironment('./fifo.ts'),
  withEnvironment('./folder.ts'),
  withEnvironment('./exits.ts'),
  withEnvironment('./negative.ts'),
  withEnvironment('./null.ts'),
  withEnvironment('./throws.ts'),
  withEnvironment('./throws-steering.ts'),
  withEnvironment('./no-typescript.ts'),
  configText.replace('preset:reverse-text-0.2m', '/dev/zero'),
  configText.replace('preset:reverse-text-0.2m', './folder.toml'),
  `${configText}\n[tokenizer]\nchat_template = "/dev/zero"`,
  `${configText}\n[tokenizer]\nchat_template = "./fifo.toml"`,
  `${configText}\n[sft]\nsteps = 1\ndata = { path = "./fifo.toml" }`,
  `${configText}\n[sft]\nsteps = 1\ndata = "./fifo.jsonl"`,
  `${configText}\n[sft]\nsteps = 1\ndata = "./bad.jsonl"`,
  `${configText}\n[sft]\nsteps = 1\ndata = "/dev/zero"`,
  `${configText}\n[trainer]\nkind = "module"\nimport = "/dev/zero"`,
  `${configText}\n[trainer]\nkind = "module"\nimport = "./fifo.ts"`,
  throwingTrainer,
  `${configText}\n[store]\nuri = "file:///dev/zero"`,
];

function withEnvironment(file: string): string {
  return configText.replace('id = "reverse-text"', `id = "${file}"`);
}

/** Beside the run files: what they name. */
export const besides: Readonly<Record<string, string>> = {
  'exits.ts': 'process.exit(7);\n',
  'throws.ts': 'throw null;\n',
  'throws-steering.ts': "throw new Error('\\u001b[2J\\u202eevil');\n",
  'no-typescript.ts': 'export const = ;\n',
  'bad.jsonl': 'null\n{"messages": 7}\n',
  'null.ts': 'export const loadEnvironment = () => null;\n',
  'negative.ts':
    "export const loadEnvironment = () => ({ name: 'negative', dataset: { length: -1, at: () => ({}) }, evalDataset: { length: 0, at: () => ({}) } });\n",
};

/** Whether a run file is known to be wrong: what answers it with exit code 0 swallows an error. */
export function mustBeRefused(text: string): boolean {
  return known.includes(text) && text !== throwingTrainer;
}

/** Those that name code of ours, which is looked at only where one says so. */
export function isImporting(text: string): boolean {
  return /"\.\/[a-z-]+\.ts"/.test(text);
}

export function* badRunFiles(count: number, random: Random): Generator<string> {
  yield* known;
  const files = [configText, ...runFiles('seeds').map(({ text }) => text)];
  for (let i = known.length; i < count; i++) yield spoiled(files[i % files.length]!, random);
}
