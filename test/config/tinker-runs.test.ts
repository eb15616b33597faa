import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const run = (more: { top?: string; trainer?: string; inference?: string; tables?: string } = {}) => `
model = "models/Qwen3-4B"
${more.top ?? ''}
[[env]]
id = "reverse-text"
[trainer]
kind = "tinker"
${more.trainer ?? ''}
[inference]
${more.inference ?? 'kind = "tinker"'}
${more.tables ?? ''}
`;

function specOf(text: string) {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert.ok(parsed.ok, parsed.ok ? '' : JSON.stringify(parsed.problems));
  return parsed;
}

/** Paths of what is wrong. */
function refused(text: string): string[] {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert.ok(!parsed.ok, 'it was accepted');
  for (const { expected } of parsed.problems) assert.ok(expected.length > 10, expected);
  return parsed.problems.map(({ path }) => path);
}

describe('a run on a Tinker server', () => {
  test('without a url it is the hosted service, with its key by name, and both train and sample there', () => {
    const { spec, warnings } = specOf(run());
    assert.deepEqual(spec.trainer, {
      kind: 'tinker',
      url: 'https://tinker.thinkingmachines.dev/services/tinker-prod',
      apiKeyVar: 'TINKER_API_KEY',
      server: 'tinker',
      baseModel: null,
      reduction: null,
      checkpointTtlS: null,
    });
    assert.ok(spec.inference.kind === 'tinker' && spec.inference.url === spec.trainer.url);
    assert.deepEqual([spec.lora?.r, spec.lora?.alpha, spec.lora?.dropout], [16, 32, 0]);
    assert.deepEqual(warnings, []);
  });

  test('its alpha is 32 whatever the rank: nothing is said of that, and another one is refused in a line', () => {
    const lines = (lora: string) => {
      const parsed = parseRunConfig(run({ tables: lora }), { file: 'run.toml' });
      if (parsed.ok) return [...parsed.advice, ...parsed.warnings].filter((said) => /alpha/.test(JSON.stringify(said)));
      return parsed.problems.map(({ path, expected, received }) => `${path} = ${received}: ${expected}`);
    };
    for (const quiet of ['', '[lora]', '[lora]\nr = 8', '[lora]\nr = 128', '[lora]\nr = 8\nalpha = 32']) {
      assert.deepEqual(lines(quiet), [], quiet);
    }
    const refusal = '32, or nothing: a Tinker server scales its adapters by 32 / r';
    assert.deepEqual(lines('[lora]\nr = 8\nalpha = 16'), [`lora.alpha = 16: ${refusal}`]);
    const hosted = parseRunConfig(run({ top: 'lora_alpha = 64' }), { file: 'run.toml' });
    assert.ok(!hosted.ok);
    assert.deepEqual(
      hosted.problems.map(({ path, expected }) => [path, expected]),
      [['lora_alpha', refusal]],
    );
  });

  test('a server of one’s own is SkyRL, which asks for no key, and clips nothing', () => {
    const { spec, warnings } = specOf(
      run({
        trainer: 'url = "http://127.0.0.1:8901"\nbase_model = "b"\ncheckpoint_ttl = 86400',
        tables: '[lora]\nr = 8\n[sft]\nsteps = 5',
      }),
    );
    assert.ok(spec.trainer.kind === 'tinker');
    const { server, apiKeyVar, reduction, baseModel, checkpointTtlS } = spec.trainer;
    assert.deepEqual([server, apiKeyVar, reduction, baseModel, checkpointTtlS], ['skyrl', null, null, 'b', 86_400]);
    assert.equal(spec.lora?.r, 8);
    assert.match(warnings.join('\n'), /max_grad_norm.*\n.*beta1, beta2, epsilon and weight_decay.*\n.*moments/);
  });

  test('all weights are trained on a server of one’s own where [lora] is not enabled, and not on the hosted service', () => {
    const own = run({ trainer: 'url = "http://127.0.0.1:8901"', tables: '[lora]\nenabled = false' });
    assert.equal(specOf(own).spec.lora, null);
    assert.deepEqual(refused(run({ tables: '[lora]\nenabled = false' })), ['lora.enabled']);
  });

  for (const [what, text, name] of [
    ['a loss that it does not have', run({ trainer: 'loss = "gspo"' }), '"gspo"'],
    ['a mask', run({ trainer: 'loss = { type = "importance_sampling", mask_high = 4 }' }), '"importance_sampling"'],
    ['a KL penalty', run({ tables: '[kl_penalty]\nbeta = 0.1' }), 'with [kl_penalty]'],
  ] as const) {
    test(`${what} is computed from its log probabilities, which is said`, () => {
      const [warning, ...more] = specOf(text).warnings;
      assert.ok(warning?.includes(name) && warning.includes('a forward pass'), warning);
      assert.deepEqual(more, []);
    });
  }

  for (const [what, text, path] of [
    ['another temperature', run({ tables: '[sampling]\ntemperature = 0.7' }), 'sampling.temperature'],
    ['another alpha', run({ tables: '[lora]\nalpha = 16' }), 'lora.alpha'],
    [
      'some of the layers that it adapts together',
      run({ tables: '[lora]\ntarget_modules = ["q_proj"]' }),
      'lora.target_modules',
    ],
    ['dropout', run({ tables: '[lora]\ndropout = 0.1' }), 'lora.dropout'],
    ['all weights', run({ tables: '[lora]\nenabled = false' }), 'lora.enabled'],
    ['penalties', run({ tables: '[sampling]\nrepetition_penalty = 1.1' }), 'sampling.repetition_penalty'],
    ['stop texts', run({ tables: '[sampling]\nstop = ["x"]' }), 'sampling.stop'],
    ['micro-batches', run({ trainer: 'micro_batch_size = 2' }), 'trainer.micro_batch_size'],
    ['the embedded engine to sample', run({ inference: 'kind = "embedded"' }), 'inference.kind'],
    ['another server to sample', run({ inference: 'kind = "tinker"\nurl = "http://a"' }), 'inference.url'],
  ] as const) {
    test(`${what} is refused before anything starts`, () => {
      const found = refused(text);
      assert.ok(
        found.some((one) => one.startsWith(path)),
        found.join(),
      );
    });
  }

  test('its settings without it are refused, and so is sampling where nothing was trained', () => {
    const text =
      'model = "preset:x"\n[[env]]\nid = "reverse-text"\n[trainer]\nbase_model = "b"\n[inference]\nkind = "tinker"\n';
    assert.deepEqual(refused(text), ['trainer.base_model', 'inference.kind']);
  });
});
