import assert from 'node:assert/strict';
import { test } from 'node:test';
import { canaryThreshold } from '../../../core/rl/learning/canary.ts';
import { parseRunConfig } from '../../../config/parse-run-config.ts';
import type { RunSpec } from '../../../config/run-spec.ts';

const specOf = (inference: string): RunSpec => {
  const text = `model = "preset:reverse-text-vllm-0.2m"\n[[env]]\nid = "reverse-text"\n[inference]\n${inference}\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
};

const vllm = 'kind = "vllm"\nurl = "http://127.0.0.1:1"\n';
const cases: readonly (readonly [inference: string, servedType: string | null, threshold: number])[] = [
  ['kind = "embedded"', null, 0.001],
  ['kind = "embedded"\nquantize = "int8"', null, 0.5],
  [vllm, null, 0.05],
  [vllm, 'float32', 0.001],
  [vllm, 'bfloat16', 0.05],
  [`${vllm}[inference.vllm]\ndtype = "float32"`, null, 0.001],
  [`${vllm}[inference.vllm]\ndtype = "float32"`, 'bfloat16', 0.05],
  [`${vllm}[inference.vllm]\ndtype = "bfloat16"`, 'float32', 0.001],
  [`${vllm}canary_threshold = 0.2`, 'float32', 0.2],
];
for (const [inference, servedType, threshold] of cases) {
  test(`the canary may be off by ${threshold}: ${JSON.stringify(inference)}, of which its servers say ${servedType}`, () => {
    assert.equal(canaryThreshold(specOf(inference), servedType), threshold);
  });
}
