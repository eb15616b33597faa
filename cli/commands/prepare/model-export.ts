import { existsSync } from 'node:fs';
import path from 'node:path';
import { Command, type CommandUnknownOpts, Option } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import {
  describeAdapter,
  ggufTypes,
  MergedParameters,
  type ModelFolder,
  saveAdapterFolder,
  saveModelFolder,
  writeGguf,
} from '../../../engine/index.ts';
import { findModel, type ModelSource } from '../../typed/model-source.ts';
import { outputFile } from '../../typed/output-file.ts';
import { print, printJson } from '../../output/print.ts';
import { progressLine } from '../../output/progress-line.ts';
import { storeOption } from '../../typed/store-option.ts';

const help = `
What is named is written, one of three or several:
  --gguf FILE        for llama.cpp and what is built on it: weights, tokenizer and chat template in one file
  --merged FOLDER    for transformers, vLLM and SGLang: an adapter is added to its base
  --adapter FOLDER   for PEFT, and for servers that load adapters beside their base

npx ratchet-rl model export my-run --gguf my-run.gguf
npx ratchet-rl model export my-run@40 --adapter my-adapter --base HuggingFaceTB/SmolLM2-135M-Instruct
`;

const dtypes = ['float32', 'bfloat16', 'float16'] as const;

export const exportModel = new Command('export')
  .description('write the model of a run, or of a folder, for llama.cpp, transformers, PEFT or vLLM')
  .argument(
    '<run|folder>',
    'a run, whose last committed step it is, or RUN@STEP; or a folder with a model or an adapter',
  )
  .option('--gguf <file>', 'one file, with tokenizer and chat template')
  .addOption(
    new Option('--type <type>', 'of the weights in the GGUF file; norms are f32').choices(ggufTypes).default('f16'),
  )
  .option('--merged <folder>', 'safetensors of all weights, with config and tokenizer')
  .addOption(new Option('--dtype <type>', 'of the merged weights').choices(dtypes).default('float32'))
  .option('--adapter <folder>', "the adapter alone, as PEFT's")
  .option('--base <name>', "what the adapter's config calls its base; default: the folder it was trained on")
  .option('--step <n>', 'a step whose weights are there, as RUN@STEP names it too; default: the last committed one')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .addHelpText('after', help)
  .action(async (what, options, command) => {
    const { gguf, merged, adapter, type, dtype, json = false } = options;
    const targets = [gguf, merged, adapter].flatMap((target) => target ?? []);
    if (targets.length === 0) {
      const expected = 'expected --gguf FILE, --merged FOLDER or --adapter FOLDER, got none of them.';
      throw new RatchetError('ConfigInvalid', expected);
    }
    requireUse(command);
    targets.forEach(requireNew);
    if (gguf !== undefined) await outputFile('--gguf', gguf);
    const source = await findModel(what, options);
    const model = await source.load();
    const written: string[] = [];
    if (gguf !== undefined) {
      const progress = progressLine();
      const onTensor = (done: number, of: number): void => progress.tell(() => `${gguf}: ${done} of ${of} tensors`);
      await writeGguf(model, path.resolve(gguf), { type, onTensor }).finally(progress.end);
      written.push(`${gguf}: GGUF, ${type}, for llama.cpp`);
    }
    if (merged !== undefined) {
      await saveModelFolder(model, path.resolve(merged), { dtype });
      written.push(`${merged}: safetensors, ${dtype}, for transformers and vLLM`);
    }
    if (adapter !== undefined) {
      const base = await writeAdapter(model, adapter, { source, base: options.base });
      written.push(`${adapter}: adapter for PEFT, on ${base}`);
    }
    if (json) printJson({ from: source.name, gguf, merged, adapter }, 2);
    else print([`${source.name} is written:`, ...written.map((line) => `  ${line}`)].join('\n'));
  });

/** Returns the name of the base in its config. */
async function writeAdapter(
  { parameters, files }: ModelFolder,
  target: string,
  { source, base: asked }: { readonly source: ModelSource; readonly base: string | undefined },
): Promise<string> {
  const described = await describeAdapter(source.folder);
  if (!(parameters instanceof MergedParameters) || described === null) {
    const instead = 'It has weights of its own, and no base beside them: write them with --merged.';
    throw new RatchetError(
      'ConfigInvalid',
      `--adapter: expected a run or a folder with an adapter, got ${source.name}. ${instead}`,
    );
  }
  const base = asked ?? source.baseName ?? described.baseFolder;
  const { adapter, baseDigest } = parameters;
  // The base has its own config.json; beside the adapter it would suggest weights that are missing.
  const { 'config.json': _, ...texts } = files;
  await saveAdapterFolder({ adapter, base, baseDigest, files: texts }, path.resolve(target));
  return base;
}

/** Refuses an option without effect, since the user expects one. */
function requireUse(command: CommandUnknownOpts): void {
  for (const [option, target] of [
    ['type', 'gguf'],
    ['dtype', 'merged'],
    ['base', 'adapter'],
  ] as const) {
    if (command.getOptionValueSource(option) !== 'cli' || command.getOptionValue(target) !== undefined) continue;
    throw new RatchetError('ConfigInvalid', `--${option}: expected --${target} beside it, which alone has one.`);
  }
}

function requireNew(target: string): void {
  if (!existsSync(target)) return;
  throw new RatchetError('ConfigInvalid', `expected a place where nothing is yet, got ${path.resolve(target)}.`);
}
