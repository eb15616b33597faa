import { type ChatTemplateSpec, type CodeRef, type DataRef, keptRows, type RunSpec } from '../config/run-spec.ts';
import { trustedData } from '../host/trusted-files.ts';
import { begunWith } from '../runs/begun-run.ts';
import { sha256 } from '../store/file-store.ts';
import { findCachedDataset, partName } from '../backends/hub/get-dataset.ts';
import { hubSettings } from '../backends/hub/hub-settings.ts';
import { readChatTemplate } from './chat-template.ts';
import { type Folders, resolvePath } from './paths.ts';
import { Refused, type Tried } from './refused.ts';
import { readSftData } from './data/sft-data.ts';

/** Files that a run keeps unchanged from its beginning: its chat template, and the rows of [sft] or [data]. */

/** Folders searched for files that a run keeps, and what an existing run has of them. */
interface Around extends Folders {
  readonly begun: Awaited<ReturnType<typeof begunWith>>;
}

/** Reads both files; `mayLook`: whether an existing run may be read. */
export async function readKept(
  spec: RunSpec,
  { folders, mayLook }: { readonly folders: Folders; readonly mayLook: boolean },
  tried: Tried,
): Promise<{ readonly data: LoadedData | null; readonly template: LoadedTemplate | null }> {
  const keeps = keptRows(spec) !== null || spec.chatTemplate?.path != null;
  const around = { ...folders, begun: keeps && mayLook ? await begunWith(spec) : null };
  return {
    data: await tried(
      [
        ['data', 'name'],
        ['sft', 'data'],
      ],
      () => readData(spec, around),
    ),
    template: await tried([['tokenizer', 'chat_template']], () => readTemplate(spec, around)),
  };
}

interface LoadedTemplate {
  readonly ref: ChatTemplateSpec;
  readonly text: string | null;
  /** The file's present contents. */
  readonly found?: Pick<CodeRef, 'path' | 'sha256'>;
  readonly warning?: string;
}

/** `[tokenizer] chat_template`: the present one, or the one that the run began with. */
async function readTemplate(spec: RunSpec, { begun: before, ...folders }: Around): Promise<LoadedTemplate | null> {
  const written = spec.chatTemplate?.path;
  if (written == null) return null;
  const begun = before?.chatTemplate ?? null;
  const goesOn = (what: string): LoadedTemplate => ({
    ref: begun!,
    text: null,
    warning: `[tokenizer] chat_template ${what} since this run began; it continues with the template it has. To begin with the other one: --fresh.`,
  });
  try {
    const found = await readChatTemplate(written, (file) =>
      trustedData(resolvePath(file, folders), 'The chat template'),
    );
    if (begun && begun.sha256 !== found.ref.sha256) return goesOn('has changed');
    return { ...found, found: { path: resolvePath(written, folders), sha256: found.ref.sha256 } };
  } catch (error) {
    if (begun && error instanceof Refused) return goesOn('has become unreadable');
    throw error;
  }
}

interface LoadedData {
  readonly ref: DataRef;
  readonly rows: Uint8Array | null;
  /** The file's present contents. */
  readonly found?: Pick<CodeRef, 'path' | 'sha256'>;
  readonly warning?: string;
}

/** `[sft] data`, or `[data] name`: the present rows, or those that the run began with. */
async function readData(spec: RunSpec, { begun: before, ...folders }: Around): Promise<LoadedData | null> {
  const written = keptRows(spec);
  if (written === null) return null;
  const { path, hub } = written;
  const file = hub ? path : trustedData(resolvePath(path, folders), 'The data');
  const begun = before?.data ?? null;
  const goesOn = (what: string): LoadedData => ({
    ref: begun!,
    rows: null,
    warning: `${spec.data ? '[data] name' : '[sft] data'}: ${file} ${what} since this run began; it continues with the rows it has. To begin with those of the file: --fresh.`,
  });
  let found: Awaited<ReturnType<typeof readSftData>>;
  try {
    found = await readSftData(hub ? cachedFiles(path, hub) : file, { pairs: spec.sft?.dpo !== undefined });
  } catch (error) {
    if (begun) return goesOn('has become unreadable');
    throw error;
  }
  const digest = sha256(found.bytes);
  if (begun && begun.sha256 !== digest) return goesOn('has changed');
  const ref = { path: file, sha256: digest };
  if (hub) return { ref: begun ?? { ...ref, hub }, rows: found.bytes };
  return { ref: begun ?? ref, rows: found.bytes, found: ref };
}

function cachedFiles(id: string, part: NonNullable<DataRef['hub']>): readonly string[] {
  const { cache } = hubSettings();
  const found = findCachedDataset({ cache }, { id, ...part });
  if (found !== null) return found.files;
  const options = [
    part.subset === null ? '' : ` --subset ${part.subset}`,
    part.split === 'train' ? '' : ` --split ${part.split}`,
  ].join('');
  throw new Refused({
    expected: `rows that are here: a .jsonl or .parquet file, or a dataset of the Hugging Face Hub in ${cache}`,
    received: `${id} (${partName(part)}), which is not in that cache, or not whole`,
    suggestion: `fetch it: npx ratchet-rl model get ${id} --dataset${options}, or train with --yes`,
  });
}
