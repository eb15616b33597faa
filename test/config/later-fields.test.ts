import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { stringify } from 'smol-toml';
import { z } from 'zod';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { KeyPath } from '../../config/toml/positions.ts';
import { settingsToCome, whenHonoured } from '../../config/settings/later.ts';
import { setAt, type Table } from '../../config/toml/tables.ts';

describe('fields whose feature is not there', () => {
  for (const [field, { type, feature, instead, met }] of Object.entries(settingsToCome)) {
    const isRefused = instead !== undefined;
    test(`${field} is ${isRefused ? 'refused by name' : 'kept in the spec and listed as not yet honoured'}`, () => {
      const value = valueOf(type, met);
      assert.notEqual(value, undefined, 'this test knows no value of that kind');
      const table: Table = {
        model: 'preset:reverse-text-0.2m',
        env: [{ id: 'reverse-text' }],
        eval: { env: [{ id: 'reverse-text' }] },
      };
      setAt(table, placeOf(field), value);
      const parsed = parseRunConfig(stringify(table), { file: 'run.toml', dialect: 'ratchet' });
      if (isRefused) {
        assert(!parsed.ok && parsed.problems.length === 1, JSON.stringify(parsed));
        const { line, expected, suggestion } = parsed.problems[0]!;
        assert(line, 'with its line');
        assert.deepEqual([expected, suggestion], [instead, `known, not supported yet: ${feature}`]);
        return;
      }
      assert(parsed.ok, JSON.stringify(parsed));
      const path = field.replaceAll('[]', '[0]');
      assert.deepEqual(parsed.spec.later, { [path]: value });
      const [listed] = parsed.notYet;
      assert.deepEqual([parsed.notYet.length, listed?.feature], [1, feature]);
      assert.equal(listed!.path, path + (path === listed!.path ? '' : '.a'), 'itself, or what is in its table');
      assert(listed?.line, 'with its line');
    });
  }

  test('every key that was written has its own line, with what was written', () => {
    const text = `
inference_gpu_ids = [0, 1, 2]
[model]
name = "m"
[[orchestrator.env]]
id = "reverse-text"
[inference]
gpu_memory_utilization = 0.6
[inference.model]
enable_auto_tool_choice = true
tool_call_parser = "hermes"
max_model_len = 4096
[orchestrator]
rollouts_per_example = 8
`;
    const parsed = parseRunConfig(text, { file: 'run.toml', overrides: { 'inference.gpu_memory_utilization': '0.7' } });
    assert(parsed.ok, JSON.stringify(parsed));
    const lines = parsed.notYet.map(({ file, line, path, value }) => [file, line, path, value]);
    assert.deepEqual(
      lines.toSorted((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1)),
      [
        ['command line', null, 'inference.gpu_memory_utilization', 0.7],
        ['run.toml', 10, 'inference.model.enable_auto_tool_choice', true],
        ['run.toml', 11, 'inference.model.tool_call_parser', 'hermes'],
        ['run.toml', 12, 'inference.model.max_model_len', 4096],
        ['run.toml', 2, 'inference_gpu_ids', [0, 1, 2]],
      ],
    );
  });

  test('arguments of a server are listed where they stand, in their table or beside it', () => {
    const text = `model = "m"
[env]
id = "reverse-text"
[inference]
gpus = 1
tool_call_parser = "hermes"
[inference.args]
enforce_eager = true
[trainer]
gpus = 2
`;
    const parsed = parseRunConfig(text, { file: 'run.toml', dialect: 'vf-rl' });
    assert(parsed.ok, JSON.stringify(parsed));
    assert.deepEqual(
      parsed.notYet.map(({ line, path, value }) => [line, path, value]),
      [
        [5, 'inference.gpus', 1],
        [6, 'inference.tool_call_parser', 'hermes'],
        [8, 'inference.args.enforce_eager', true],
        [10, 'trainer.gpus', 2],
      ],
    );
  });

  test('what PyTorch honours, or is to, is said, with what the trainer of the file does instead', () => {
    const said = (trainer: string): Record<string, unknown> => {
      const text = `model = "m"\n[lora]\n[trainer]\n${trainer}\n[[env]]\nid = "reverse-text"\n`;
      const parsed = parseRunConfig(text, { file: 'run.toml', dialect: 'ratchet' });
      assert(parsed.ok, JSON.stringify(parsed));
      return Object.fromEntries(parsed.notYet.map(({ path, feature, here }) => [path, [whenHonoured(feature), here]]));
    };
    const more = 'to come: more of what PyTorch can do';
    const torch = 'where PyTorch trains: kind = "torch"';
    assert.deepEqual(said('optimization_dtype = "bfloat16"\nuse_liger = true\ntp = 2'), {
      'trainer.tp': [more, 'one process computes all of it'],
      'trainer.optimization_dtype': [torch, 'weights are held in float32'],
      'trainer.use_liger': [torch, 'the embedded engine has kernels of its own'],
    });
    const met = 'optimization_dtype = "float32"\nreduce_dtype = "float32"\nuse_liger = false\ntp = 1\ncompile = false';
    assert.deepEqual(Object.keys(said(met)), ['trainer.compile'], 'what is done anyway waits for nothing');
    assert.deepEqual(said('gpus = 1'), {
      'trainer.gpus': [torch, 'one process trains, on the CPU'],
    });
    const byTorch = parseRunConfig('model = "m"\n[trainer]\nkind = "torch"\ngpus = 2\n[inference]\nkind = "vllm"\n[[env]]\nid = "reverse-text"\n', { file: 'run.toml' }); // prettier-ignore
    assert(byTorch.ok && byTorch.notYet.length === 0, 'PyTorch has GPUs');
    assert.deepEqual(said('gpus = 1\nprovider = "cuda"'), {});
    const own = said('kind = "module"\nimport = "./mine.ts"\noptimization_dtype = "bfloat16"\ngpus = 1');
    const decides = 'trainer.kind = "module" decides';
    assert.deepEqual(own, { 'trainer.gpus': [torch, decides], 'trainer.optimization_dtype': [torch, decides] });
  });

  test('what is honoured is not listed', () => {
    const text = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
    const parsed = parseRunConfig(text, { file: 'run.toml' });
    assert(parsed.ok);
    assert.deepEqual([parsed.spec.later, parsed.notYet], [{}, []]);
  });
});

function placeOf(field: string): KeyPath {
  return field
    .split('.')
    .flatMap((part): (string | number)[] => (part.endsWith('[]') ? [part.slice(0, -2), 0] : [part]));
}

/** Something the schema takes; undefined where none of these will do. */
function valueOf(schema: z.ZodType, met?: unknown): unknown {
  const element = schema instanceof z.ZodArray ? valueOf(schema.element as z.ZodType) : undefined;
  const options = schema instanceof z.ZodEnum ? schema.options : [];
  const candidates = [2, 0.5, true, 'x', ...options, { a: 1 }, [element], { type: 'x' }, [{ type: 'x' }], ['x'], [1]];
  return candidates.find((candidate) => candidate !== met && schema.safeParse(candidate).success);
}
