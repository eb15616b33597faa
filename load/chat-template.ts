import { chatTemplateBytesMax } from '../core/limits.ts';
import type { ChatTemplateSpec } from '../config/run-spec.ts';
import { compileTemplate } from '../engine/model/template/bounded-template.ts';
import { sha256 } from '../store/file-store.ts';
import { Refused } from './refused.ts';
import { howToBeTold, tellsContent } from '../backends/untold.ts';
import { readRegularText, whyUnreadable } from '../host/regular-file.ts';

/** A chat template as a run keeps it, and its text. */
interface ReadTemplate {
  readonly ref: ChatTemplateSpec;
  readonly text: string;
}

const expected = 'a Jinja chat template: its text, or a file with it';

/** Reads `[tokenizer] chat_template`: the text of a template, or its file. Refuses invalid templates. */
export async function readChatTemplate(written: string, resolve: (file: string) => string): Promise<ReadTemplate> {
  const path = isTemplateText(written) ? null : resolve(written);
  const text = path === null ? written : await readTemplateFile(path);
  try {
    compileTemplate(text);
  } catch (cause) {
    if (path !== null && !tellsContent())
      throw new Refused({ expected, received: `${path} that is none`, suggestion: howToBeTold });
    throw new Refused({ expected, received: `${path ?? 'a text'} that is none: ${(cause as Error).message}` }, cause);
  }
  return { ref: { path, sha256: sha256(Buffer.from(text)) }, text };
}

/** A template has something to fill in; the name of a file has not. */
function isTemplateText(written: string): boolean {
  return /\{[{%]/.test(written);
}

async function readTemplateFile(file: string): Promise<string> {
  let text: string;
  try {
    text = await readRegularText(file);
  } catch (cause) {
    throw new Refused(
      { expected, received: `${whyUnreadable(cause)}: ${file} (a text of a template has {{ or {% in it)` },
      cause,
    );
  }
  if (!isTemplateText(text)) throw new Refused({ expected, received: `${file}, which has neither {{ nor {% in it` });
  if (text.length <= chatTemplateBytesMax) return text;
  throw new Refused({
    expected,
    received: `${file} with ${text.length} characters, more than ${chatTemplateBytesMax}`,
  });
}
