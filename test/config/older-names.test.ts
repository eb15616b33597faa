import assert from 'node:assert/strict';
import { test } from 'node:test';
import { withOlderNamesTogether } from '../../config/toml/older-names.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const older = `inference_gpu_ids = [0]
max_model_len = 4096
[model]
name = "Qwen/Qwen3-4B"
[orchestrator]
batch_size = 128
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 512
[[orchestrator.env]]
id = "owner/gsm8k"
[trainer]
[inference]
gpu_memory_utilization = 0.5
`;

test('older names of a prime-rl file are one line, behind the warnings that matter', () => {
  const parsed = parseRunConfig(older, { file: 'run.toml', dialect: 'prime-rl' });
  assert(parsed.ok, JSON.stringify(parsed));
  const { warnings } = parsed;
  const isOlder = (warning: string): boolean => /older (?:name|way)/.test(warning);
  assert.ok(warnings.filter(isOlder).length >= 5, warnings.join('\n'));
  const told = withOlderNamesTogether(warnings);
  assert.deepEqual(
    told.slice(0, -1),
    warnings.filter((warning) => !isOlder(warning)),
  );
  const last = told.at(-1)!;
  assert.match(last, /^\d older names, each read as what it is called now: /);
  for (const name of [
    'max_model_len (now inference.vllm.max_model_len)',
    'orchestrator.rollouts_per_example (now orchestrator.group_size)',
    'inference_gpu_ids',
  ])
    // prettier-ignore
    assert.ok(last.includes(name), last);
});

test('a single older name stays a sentence', () => {
  const one = 'orchestrator.sampling is an older name: prime-rl calls it orchestrator.train.sampling since 0.6. It is read as that.'; // prettier-ignore
  assert.deepEqual(withOlderNamesTogether([one, 'another']), [one, 'another']);
});
