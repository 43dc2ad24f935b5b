// What makes an AttentionShape well formed.
#ifndef QUIRE_ATTENTION_SHAPE_H_
#define QUIRE_ATTENTION_SHAPE_H_

#include "attention/visible.h"
#include "quire/attention.h"

namespace quire::attention {

/// Errors: kInvalidArgument names the field that contradicts another or is out of range
Result<void> ValidateShape(const AttentionShape& shape);

/// Whether a plan for one layer can run another one.
///
/// Errors: kInvalidArgument `shape` differs from `planned` in more than where streams lie in slots
Result<void> CheckPlanned(const AttentionShape& planned, const AttentionShape& shape);

/// Whether blocks that a row reads open are laid out otherwise than earlier ones.
bool HasOpenForm(const AttentionShape& shape);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_SHAPE_H_
