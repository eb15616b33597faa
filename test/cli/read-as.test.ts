import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readAsLines } from '../../cli/start/read-as.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const linesOf = (text: string): string[] => readAsLines('run.toml', parseRunConfig(text, { file: 'run.toml' }).readAs!);

test('a file in our own words is trained without a word about them', () => {
  assert.deepEqual(linesOf('model = "preset:x"\n[[env]]\nid = "reverse-text"\n'), []);
});

test('a file that could be of several systems is said to be Hosted Training, with what would differ', () => {
  const lines = linesOf('model = "Qwen/Qwen3-4B"\n[[env]]\nid = "owner/gsm8k"\n');
  assert.equal(lines[0], 'run.toml is read as Hosted Training (prime 0.9.5); its keys could be others’ as well:');
  assert.match(lines[1]!, /\(--dialect hosted-0.5.61\): trainer\.loss\.type: "dppo" here, "importance_sampling" there/);
  assert.match(lines[2]!, /\(--dialect flat\): .*learning_rate: 0.0001 here, 0.000001 there/);
});

test('a file that only one system has is said to be its', () => {
  const lines = linesOf('model = "Qwen/Q"\n[env]\nid = "a/b"\n[inference]\ngpus = 1\n[trainer]\ngpus = 1\n');
  assert.deepEqual(lines, ['run.toml is read as vf-rl (verifiers’ RLConfig)']);
});
