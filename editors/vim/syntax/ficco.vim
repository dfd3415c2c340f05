" The language ficco. Words as in docs/language.md.
if exists("b:current_syntax")
  finish
endif

syntax keyword ficcoDeclaration schedule param type input output scratch computes queue kernel stage
syntax keyword ficcoStatement gemm reduce quantize copy all_gather all_reduce reduce_scatter all_to_all launch
syntax keyword ficcoControl for step if else let in on of with after streamed where within from entry unproven scaled transposed and or not read write update int
syntax keyword ficcoAttribute engine priority smem residency sms leave order fast scale ctas threads host grid block
syntax keyword ficcoValue high normal low text auto nccl sm vendor pow2
syntax match ficcoType "\v<(bf|fp)[0-9]+(_e[0-9]m[0-9])?>"
syntax keyword ficcoBuiltin rank ranks peers all
syntax match ficcoFunction "\v<(reversed|min|max|sum|len|ceil|part|rows|cols)>\ze\s*\("
syntax match ficcoNumber "\v<[0-9][0-9_]*>"
syntax keyword ficcoUnit KiB MiB GiB
syntax match ficcoOperator "\v\<-|\.\.|\@"
syntax region ficcoString start=+"+ end=+"+ oneline
syntax match ficcoComment "#.*$"

highlight default link ficcoDeclaration Keyword
highlight default link ficcoStatement Statement
highlight default link ficcoControl Conditional
highlight default link ficcoAttribute Identifier
highlight default link ficcoValue Constant
highlight default link ficcoType Type
highlight default link ficcoBuiltin Special
highlight default link ficcoFunction Function
highlight default link ficcoNumber Number
highlight default link ficcoUnit Number
highlight default link ficcoOperator Operator
highlight default link ficcoString String
highlight default link ficcoComment Comment

let b:current_syntax = "ficco"
