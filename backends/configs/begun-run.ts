import { z } from 'zod';
import { layout } from '../../core/layout.ts';
import { ChatTemplateSpec, DataRef, type RunSpec } from '../../core/spec/run-spec.ts';
import { openRunStore } from '../store/index.ts';
import { decodeJson } from '../store/objects.ts';

const Begun = z.looseObject({
  sft: z.looseObject({ data: DataRef.nullish() }).nullish(),
  chatTemplate: ChatTemplateSpec.nullish(),
});

/** What a run of this name was begun with, of what lies in the run from then on; null where there is no such run. */
export async function begunWith({
  store,
  name,
}: Pick<RunSpec, 'store' | 'name'>): Promise<{ data: DataRef | null; chatTemplate: ChatTemplateSpec | null } | null> {
  const bytes = await openRunStore(store.uri, name).read(layout.run());
  if (bytes === null) return null;
  const { spec } = z.looseObject({ spec: Begun }).parse(decodeJson(bytes, layout.run()));
  return { data: spec.sft?.data ?? null, chatTemplate: spec.chatTemplate ?? null };
}
