import path from 'node:path';
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
import { loadModelTexts } from '../engine/model/model-folder.ts';
import { ofRepository } from '../engine/model/model-repository.ts';
import { weightFilesWithIndex } from '../engine/model/weights.ts';
import { storedTemplate } from '../runs/forms/stored-template.ts';
import { layout } from '../runs/layout.ts';
import { storeOf } from '../runs/run-access.ts';
import type { WarmUpState } from '../runs/versions/warm-up-state.ts';
import { putMade, putSums } from '../store/version-files.ts';
import { madeAt } from './pending-versions.ts';
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
  const isPreset = spec.model.startsWith('preset:');
  if (trainerTraits(spec.trainer).engine === 'its own' && !isPreset)
    return copyBase(trainer, run, spec, { weights, isLast });
  const opened = await openModel(spec.model, { seed: spec.seed });
  const template = await storedTemplate(run, spec);
  // Every later version gets the template with its weights, so servers and downloads render as in training.
  const model = template === null ? opened : withChatTemplate(opened, template);
  await checkKeptRows(run, spec, model);
  const version = await putMade(storeOf(run), madeAt(run, weights), async (folder) => {
    await saveModelFolder(model, folder);
    if (trainerTraits(spec.trainer).baseDigest === 'engine') return model.parameters.digest();
    return digestBy(trainer, run, folder, { isWarmUp: true });
  });
  const policy = { step: 0, digest: version.made, weights, ...version.files };
  return { step: 0, policy, optimizer: null, loss: null };
}

/** The model's own files, which go from disk to store: it may be larger than this process's memory, or of a kind that only the trainer knows. */
async function copyBase(
  trainer: PolicyTrainer,
  run: RunHandle,
  spec: RunSpec,
  { weights, isLast }: { readonly weights: string; readonly isLast: boolean },
): Promise<WarmUpState> {
  const store = storeOf(run);
  const folder = path.resolve(spec.model);
  const opened = await loadModelTexts(folder);
  const template = await storedTemplate(run, spec);
  const model = template === null ? opened : withChatTemplate(opened, template);
  await checkKeptRows(run, spec, model);
  const digest = await digestBy(trainer, run, folder, { isWarmUp: !isLast });
  const texts = Object.entries(model.files).map(([name, text]) => store.put(weights + name, Buffer.from(text)));
  const refs = await Promise.all(texts);
  for (const name of await weightFilesWithIndex(folder))
    refs.push(await store.putFile(weights + name, path.join(folder, name), ofRepository(folder).within));
  const sums = await putSums(store, weights, refs);
  return { step: 0, policy: { step: 0, digest, weights, file: refs.at(-1)!, sums }, optimizer: null, loss: null };
}

async function checkKeptRows(
  run: RunHandle,
  spec: RunSpec,
  { tokenizer, config }: Pick<ModelFolder, 'tokenizer' | 'config'>,
): Promise<void> {
  if (!keptRows(spec)) return;
  const { templateArguments } = spec.sampling;
  await checkRows(run, spec, { tokenizer, positionsMax: config.positionsMax, templateArguments });
}

/** A trainer with an engine of its own says what its weights are, also of a model that it has yet to make its own of. */
async function digestBy(
  trainer: PolicyTrainer,
  run: RunHandle,
  folder: string,
  { isWarmUp }: { readonly isWarmUp: boolean },
): Promise<string> {
  const { digest } = await trainer.startFrom(run, folder, { optimizer: null, isWarmUp });
  await trainer.close(); // it opens v0 where that lies
  return digest;
}

/** The texts of a model whose weights are elsewhere: tokenizer, configs, the run's own chat template. */
async function textsOf(run: RunHandle, spec: RunSpec): Promise<TextFiles> {
  const { model } = spec;
  const files = model.startsWith('preset:') ? presetFiles(model) : await readTextFiles(model);
  const template = await storedTemplate(run, spec);
  return template === null ? files : withTemplateFile(files, template);
}
