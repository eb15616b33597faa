import { z } from 'zod';
import { layout } from './layout.ts';
import { ChatTemplateSpec, DataRef, type RunSpec } from '../config/run-spec.ts';
import { openRunStore } from '../store/index.ts';
import { damaged } from '../store/objects.ts';
import { decodeStored } from './forms/stored-forms.ts';

const Begun = z.looseObject({
  sft: z.looseObject({ data: DataRef.nullish() }).nullish(),
  data: z.looseObject({ rows: DataRef }).optional(),
  chatTemplate: ChatTemplateSpec.nullish(),
});

/** Stored facts that are fixed when a run begins, for the run of this name; null without such a run. */
export async function begunWith({
  store,
  name,
}: Pick<RunSpec, 'store' | 'name'>): Promise<{ data: DataRef | null; chatTemplate: ChatTemplateSpec | null } | null> {
  const runStore = openRunStore(store.uri, name);
  const bytes = await runStore.read(layout.run());
  if (bytes === null) return null;
  const read = z.looseObject({ spec: Begun }).safeParse(decodeStored(bytes, runStore.uri + layout.run()));
  if (!read.success)
    throw damaged(runStore.uri + layout.run(), 'expected the settings of a run, found others', read.error);
  const { spec } = read.data;
  return { data: spec.data?.rows ?? spec.sft?.data ?? null, chatTemplate: spec.chatTemplate ?? null };
}
