import { inTemporaryFolder } from '../backends/store/temporary-folder.ts';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { warmUpStepsPerSegment } from '../core/limits.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { keptRows, type RunSpec } from '../config/run-spec.ts';
import {
  type ModelFolder,
  openModel,
  presetFiles,
  readTextFiles,
  saveModelFolder,
  type TextFiles,
  withChatTemplate,
  withTemplateFile,
} from '../engine/index.ts';
import { EngineFailures } from '../core/rl/engine-failures.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { putVersion } from '../backends/store/version-files.ts';
import { openWarmUp, storedWarmUp, storeWarmUp, type WarmUpState } from '../runs/warm-up-state.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { checkRows, learner } from '../runs/supervised-steps.ts';
import { type OpenTokenizer, policyTokenizer, storedTemplate } from '../runs/stored-template.ts';
import type { TrainDependencies } from './train-step.ts';
import { goingOn } from './trainer-claims.ts';
import { demonstrations } from '../backends/environments/demonstrations.ts';

/**
 * Makes the base model (`from` null), or trains one more segment of the warm-up. Each state is stored under its step: a
 * retry returns what is there. Batches are drawn by key, so a resumed warm-up gives the same bits.
 */
export const createWarmUp = (
  { trainer, lease }: Pick<TrainDependencies, 'trainer' | 'lease'>,
  openTokenizer: OpenTokenizer,
) => {
  const failures = new EngineFailures();
  return async (input: {
    readonly run: RunHandle;
    readonly from: WarmUpState | null;
    readonly epoch: number;
  }): Promise<WarmUpState> => {
    const { run, from } = input;
    const work = `${run.store}${run.name}/${from?.step ?? 'base'}`;
    return withHeartbeat(
      () => failures.during(work, `warm-up after step ${from?.step ?? 0}`, attempt),
      () => ({ waitsFor: trainer.waitsFor() }),
    );

    async function attempt(): Promise<WarmUpState> {
      const mayGoOn = goingOn(run, input.epoch, lease);
      await mayGoOn();
      const spec = await specOf(run);
      const total = spec.sft?.steps ?? 0;
      const step = from === null ? 0 : Math.min(total, from.step + warmUpStepsPerSegment);
      const isLast = step === total;
      const stored = await storedWarmUp(run, step);
      if (stored) return stored;

      const made = from === null ? await makeBase(trainer, run, spec, isLast) : await trainSegment(from, step);
      await mayGoOn();
      await storeWarmUp(run, made);
      return made;

      async function trainSegment(start: WarmUpState, end: number): Promise<WarmUpState> {
        const { folder, optimizer } = await openWarmUp(run, start);
        const found = await trainer.startFrom(run, folder, { optimizer, isWarmUp: true });
        if (found.digest !== start.policy.digest) {
          throw new RatchetError(
            'CheckpointDamaged',
            `${start.policy.weights} in ${storeOf(run).uri} holds other weights than warm-up step ${start.step} left there. Restore the folder from a copy.`,
          );
        }
        const tokenizer = await policyTokenizer(run, spec, { folder, open: openTokenizer });
        const learn = await learner(run, spec, tokenizer, {
          trainer,
          holdsReference: start.step === 0,
          mayGoOn,
          shown: () => demonstrations(spec, tokenizer),
        });
        let { loss } = start;
        for (let n = start.step + 1; n <= end; n++) {
          const outcome = await learn(n, n < end);
          if (!outcome.applied) {
            throw new RatchetError(
              'Unsupported',
              `Warm-up step ${n} was refused: ${outcome.reason}. Lower [sft] learning_rate (now ${spec.sft?.learningRate}).`,
            );
          }
          loss = outcome.metrics['loss'] ?? null;
        }
        const digest = await trainer.digest();
        await mayGoOn();
        const weights = isLast ? layout.weights(run.lineage, 0) : layout.warmUp(end);
        const files = await trainer.exportTo(run, weights);
        // v0 begins with a fresh optimizer: the moments of another loss are no help (learning rate and scale differ).
        if (isLast) await trainer.resetOptimizer();
        const state = isLast
          ? null
          : await storeOf(run).put(`${layout.warmUp(end)}optimizer.state`, await trainer.saveOptimizer());
        // What follows trains adapters, which is another trainer: it opens v0 as after a crash.
        if (isLast && spec.lora && !trainer.hasAdaptersOnly) await trainer.close();
        return {
          step: end,
          policy: { step: 0, digest, weights, ...files },
          optimizer: state,
          loss,
        };
      }
    }
  };
};

async function makeBase(
  trainer: TrainDependencies['trainer'],
  run: RunHandle,
  spec: RunSpec,
  isLast: boolean,
): Promise<WarmUpState> {
  const weights = isLast ? layout.weights(run.lineage, 0) : layout.warmUp(0);
  const elsewhere = await trainer.makeBase(run, weights, () => textsOf(run, spec));
  if (elsewhere) return { step: 0, policy: { step: 0, weights, ...elsewhere }, optimizer: null, loss: null };
  const opened = await openModel(spec.model, { seed: spec.seed });
  const template = await storedTemplate(run, spec);
  // With the weights, every later version has it: whoever serves or fetches one renders as it was trained.
  const model = template === null ? opened : withChatTemplate(opened, template);
  if (keptRows(spec)) {
    const { tokenizer, config } = model;
    const { templateArguments } = spec.sampling;
    await checkRows(run, spec, { tokenizer, positionsMax: config.positionsMax, templateArguments });
  }
  return inTemporaryFolder('base', async (temporary) => {
    await saveModelFolder(model, temporary);
    const files = await putVersion(storeOf(run), temporary, weights);
    const digest = await baseDigest(trainer, run, spec, { temporary, model });
    const policy = { step: 0, digest, weights, ...files };
    return { step: 0, policy, optimizer: null, loss: null };
  });
}

/** A trainer of the user's own says what its weights are, also of a model that it has yet to make its own of. */
async function baseDigest(
  trainer: TrainDependencies['trainer'],
  run: RunHandle,
  spec: RunSpec,
  { temporary, model }: { readonly temporary: string; readonly model: ModelFolder },
): Promise<string> {
  if (spec.trainer.kind !== 'module') return model.parameters.digest();
  const { digest } = await trainer.startFrom(run, temporary, { optimizer: null, isWarmUp: true });
  await trainer.close(); // the folder is gone in a moment: it opens v0 where that lies
  return digest;
}

/** The texts of a model whose weights are elsewhere: tokenizer, configs, the run's own chat template. */
async function textsOf(run: RunHandle, spec: RunSpec): Promise<TextFiles> {
  const { model } = spec;
  const files = model.startsWith('preset:') ? presetFiles(model) : await readTextFiles(model);
  const template = await storedTemplate(run, spec);
  return template === null ? files : withTemplateFile(files, template);
}
