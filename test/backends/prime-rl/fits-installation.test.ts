/** What a run asks for, and the sources of a prime-rl that do not have it: said before anything is started. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { unfitFor } from '../../../backends/prime-rl/fits-installation.ts';
import { mainMicroBatch } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { sourcesOf } from '../../../backends/prime-rl/profiles.ts';
import { parseRunConfig } from '../../../config/parse-run-config.ts';
import { older } from '../../stand-ins/prime-rl/installation.mjs';

const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-sources-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const settings = `
class CompileConfig(BaseConfig):
    fullgraph: bool = False

Chosen = Annotated[CompileConfig, "a name for it"]

class ModelConfig(BaseModelConfig):
    impl: Literal["hf", "custom", "auto"] = "auto"
    compile: Chosen | None = None

    @model_validator(mode="before")
    def renamed(cls, data):
        data["impl"] = data.pop("implementation", None)

class Foreign(OfAnotherFile):
    a: int = 1

class TrainerConfig(BaseConfig):
    model: ModelConfig = ModelConfig()
    foreign: Foreign = Foreign()
    env_vars: dict[str, str] = {}
    loss: int
    rollout_transport: int
    weight_broadcast: int
    ckpt: int
    resume: int
`;

/** A checkout with sources that have the names of the main branch. */
function checkout(): string {
  const files = {
    'src/prime_rl/trainer/rl/train.py': '',
    'src/prime_rl/transports/rollouts/types.py': `class MicroBatch:\n${mainMicroBatch.map((name) => `    ${name}: int\n`).join('')}`,
    'src/prime_rl/transports/weights/base.py': 'FINISHED = ".finished"\n(folder / FINISHED).touch()\n',
    'packages/prime-rl-configs/src/prime_rl/configs/trainer.py': settings,
    'packages/prime-rl-configs/src/prime_rl/configs/shared.py': 'class BaseModelConfig(BaseConfig):\n    name: str\n',
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.join(folder, path.dirname(name)), { recursive: true });
    writeFileSync(path.join(folder, name), text);
  }
  return folder;
}

function specOf(more: string, trainer = '') {
  const text = `model = "Qwen/Qwen3-8B"\nseq_len = 4096\nmax_steps = 4\n${more}\n[[env]]\nid = "reverse-text"\n[trainer]\nkind = "prime-rl"\nprogram = "/opt/prime-rl"\n${trainer}`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert.ok(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
}

describe('the sources of a prime-rl', () => {
  test('say which names of its own tables it does not have', async () => {
    const found = await sourcesOf(checkout(), path.join(folder, '.venv/bin/python'));
    assert.ok(found, 'a Python reads them');
    assert.deepEqual(found.markers, ['.finished']);
    const unfit = (table: string) => unfitFor(specOf('', table), found, 'python');
    assert.deepEqual(unfit('[trainer.prime_rl.model]\nimpl = "custom"\nimplementation = "hf"\n[trainer.prime_rl.model.compile]\nfullgraph = true\n[trainer.prime_rl.foreign]\nb = 1'), []); // prettier-ignore
    assert.deepEqual(unfit('[trainer.prime_rl.model]\nimpi = "custom"\n[trainer.prime_rl.model.compile]\nfulgraph = true'), [
      '[trainer.prime_rl.model] impi: prime-rl’s trainer has no such setting. Did you mean impl?',
      '[trainer.prime_rl.model.compile] fulgraph: prime-rl’s trainer has no such setting. Did you mean fullgraph?',
    ]); // prettier-ignore
    assert.equal(unfit('[trainer.prime_rl]\nmodels = 1').length, 1);
  });

  test('are nobody’s where there are none', async () => {
    assert.equal(await sourcesOf('/nowhere', '/nowhere/bin/python'), null);
  });

  test('of 0.4 are refused what their trainer cannot compute', () => {
    const unfit = (more: string, trainer = '') => unfitFor(specOf(more, trainer), older, 'python');
    assert.deepEqual(unfit(''), []);
    for (const [more, trainer, expected] of [
      ['', '[trainer.loss]\naggregation = "sequence"', /no aggregation = "sequence"/],
      ['', '[trainer.advantage]\nturns = "returns"', /no advantages of single turns/],
      ['', '[trainer.echo]\ntool = 0.1', /no cross entropy on messages/],
      ['[sft]\nsteps = 2', '', /no supervised steps/],
    ] as const) {
      const [said, ...others] = unfit(more, trainer);
      assert.match(said ?? '', expected);
      assert.deepEqual(others, []);
    }
  });
});
