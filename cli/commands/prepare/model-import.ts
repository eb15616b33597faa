import { mkdir, readdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { parameterCount, readGguf, saveModelFolder } from '../../../engine/index.ts';
import { openRegular, whyUnreadable } from '../../../host/regular-file.ts';
import { print, printJson } from '../../output/print.ts';
import { progressLine } from '../../output/progress-line.ts';

const importHelp = `
The folder has what Hugging Face's would have: config.json, tokenizer.json, tokenizer_config.json with the chat template, and safetensors of 32-bit
floats, as llama.cpp computes with them. transformers, PEFT and vLLM load it. Nothing of the file is run.
`;

export const importGguf = new Command('import')
  .description('make a folder of a GGUF file, for the embedded engine and others')
  .argument(
    '<file.gguf>',
    'of the families Llama, Mistral, SmolLM2, SmolLM3, Qwen2, Qwen3 (experts, too) and Gemma 3; packed as F32, F16, BF16, Q4 to Q8, Q2_K to Q6_K or IQ4',
  )
  .option('-o, --out <folder>', 'what is made (default: the name of the file, without .gguf)')
  .option('--json', 'as one JSON object')
  .addHelpText('after', importHelp)
  .action(async (file, { out, json = false }) => {
    await requireReadable(file);
    const folder = path.resolve(out ?? path.basename(file, '.gguf'));
    await makeFolder(folder);
    const progress = progressLine();
    try {
      const model = await readGguf(file, (done, of) => progress.tell(() => `${file}: ${done} of ${of} tensors`));
      await saveModelFolder(model, folder);
      progress.end();
      const parameters = parameterCount(model.config);
      if (json) printJson({ folder, parameters }, 2);
      else
        print(
          `${folder}: ${(parameters / 1e6).toFixed(1)} million parameters\nin a run file: model = "${out ?? `./${path.basename(folder)}`}"`,
        );
    } catch (error) {
      progress.end();
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  });

async function requireReadable(file: string): Promise<void> {
  const handle = await openRegular(file).catch((cause: unknown) => {
    throw new RatchetError('ConfigInvalid', `${file}: expected a GGUF file, but ${whyUnreadable(cause)}.`, { cause });
  });
  await handle.close();
}

/** An empty folder is accepted: an interrupted import leaves one. */
async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder).catch(async (cause: unknown) => {
    if ((await readdir(folder).catch(() => null))?.length === 0) return;
    const code = cause instanceof Error && 'code' in cause ? String(cause.code) : String(cause);
    const why =
      code === 'EEXIST'
        ? `expected a folder that is not there yet, or is empty, got ${folder}.`
        : code === 'ENOENT'
          ? `expected a folder in one that is there, got ${folder}.`
          : `${folder} cannot be made (${code}).`;
    throw new RatchetError('ConfigInvalid', `${why} Name another one with --out.`, { cause });
  });
}
