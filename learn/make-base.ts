import { keptRows, type RunSpec } from '../config/run-spec.ts';
import { trainerTraits } from '../core/kinds/trainers.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
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
import { storedTemplate } from '../runs/forms/stored-template.ts';
import { layout } from '../runs/layout.ts';
import { storeOf } from '../runs/run-access.ts';
import type { WarmUpState } from '../runs/versions/warm-up-state.ts';
import { putMade } from '../store/version-files.ts';
import type { PolicyTrainer } from './policy-trainer.ts';
import { checkRows } from './supervised-steps.ts';

/** The model that RL, or the warm-up, begins with, as v0 or as what v0 is made of. */
export async function makeBase(
  trainer: PolicyTrainer,
  run: RunHandle,
  spec: RunSpec,
  isLast: boolean,
): Promise<WarmUpState> {
  const weights = isLast ? layout.weights(run.lineage, 0) : layout.warmUp(0);
  const elsewhere = await trainer.makeBase(run, weights, () => textsOf(run, spec));
  if (elsewhere) return { step: 0, policy: { step: 0, weights, ...elsewhere }, optimizer: null, loss: null };
  const opened = await openModel(spec.model, { seed: spec.seed });
  const template = await storedTemplate(run, spec);
  // Every later version gets the template with its weights, so servers and downloads render as in training.
  const model = template === null ? opened : withChatTemplate(opened, template);
  if (keptRows(spec)) {
    const { tokenizer, config } = model;
    const { templateArguments } = spec.sampling;
    await checkRows(run, spec, { tokenizer, positionsMax: config.positionsMax, templateArguments });
  }
  const version = await putMade(storeOf(run), weights, async (folder) => {
    await saveModelFolder(model, folder);
    return baseDigest(trainer, run, spec, { temporary: folder, model });
  });
  const policy = { step: 0, digest: version.made, weights, ...version.files };
  return { step: 0, policy, optimizer: null, loss: null };
}

/** A trainer of the user's own says what its weights are, also of a model that it has yet to make its own of. */
async function baseDigest(
  trainer: PolicyTrainer,
  run: RunHandle,
  spec: RunSpec,
  { temporary, model }: { readonly temporary: string; readonly model: ModelFolder },
): Promise<string> {
  if (trainerTraits(spec.trainer).baseDigest === 'engine') return model.parameters.digest();
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
